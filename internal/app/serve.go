package app

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"mend/internal/controller/apiservice"
	"mend/internal/version"
)

// offlineAddress stands for the API where the machine has no network: it is from
// the range that documentation reserves, and nothing answers there.
const offlineAddress = "192.0.2.1"

// apiServiceConfig describes the Service default/kubernetes of an API that
// listens on address.
func apiServiceConfig(address *net.TCPAddr) apiservice.Config {
	return apiservice.Config{Addresses: []string{cmp.Or(hostAddress(), offlineAddress)}, Port: int32(address.Port)}
}

// Status implements [Control].
func (p *process) Status(ctx context.Context) Status {
	status := Status{
		Running:    true,
		Version:    version.Version,
		Kubernetes: version.Kubernetes,
		Instance:   p.instance.ID,
		Server:     p.server,
		PID:        pid(),
		Since:      p.since,
		Memory:     map[string]int64{},
		Paths:      map[string]string{"data": p.instance.Dir, "log": p.instance.LogFile(), "kubeconfig": p.instance.Kubeconfig()},
	}
	if bytes := residentBytes(pid()); bytes > 0 { // not known on every system
		status.Memory["mend"] = bytes
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status.Components = append(status.Components,
		component("store", p.store.Health(ctx)),
		component("API server", p.api.Ready()),
		p.loopsStatus())
	if fault := p.snapshotFault.Load(); fault != nil {
		status.Components = append(status.Components, component("hourly snapshot", *fault))
	}
	if p.host != nil {
		p.host.describe(&status)
	}
	nodes, err := p.nodesStatus(ctx)
	if err != nil {
		status.Components = append(status.Components, component("nodes", err))
	}
	status.Nodes = nodes
	return status
}

func component(name string, err error) ComponentStatus {
	if err != nil {
		return ComponentStatus{Name: name, Message: err.Error()}
	}
	return ComponentStatus{Name: name, Healthy: true}
}

// loopsStatus is healthy while no loop has panicked since the start.
func (p *process) loopsStatus() ComponentStatus {
	status := ComponentStatus{Name: "loops", Healthy: true, Message: fmt.Sprintf("%d run", len(p.built))}
	for _, made := range p.built {
		if panics, last := made.Panics(); panics > 0 {
			status.Healthy = false
			status.Message = fmt.Sprintf("%s panicked %d times, last on %s; it goes on with back-off", made.Name(), panics, last)
		}
	}
	return status
}

func (p *process) nodesStatus(ctx context.Context) ([]NodeStatus, error) {
	client, err := kubernetes.NewForConfig(p.api.ClientConfig("status"))
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	for i := range pods.Items {
		count[pods.Items[i].Spec.NodeName]++
	}
	var list []NodeStatus
	for i := range nodes.Items {
		node := &nodes.Items[i]
		ready, message := readiness(node)
		list = append(list, NodeStatus{Name: node.Name, Ready: ready, Message: message,
			Kubelet: node.Status.NodeInfo.KubeletVersion, Address: internalIP(node), Pods: count[node.Name]})
	}
	return list, nil
}

// readiness is the node's Ready condition; the message is empty while it holds.
func readiness(node *corev1.Node) (ready bool, message string) {
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			return true, ""
		}
		return false, condition.Message
	}
	return false, "it has not reported yet"
}

func internalIP(node *corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"mend/internal/agent"
	"mend/internal/pki"
)

const clusterDomain = "cluster.local"

// readyLimit bounds each wait of the start: for the informers, the namespaces and the
// nodes. It is long: after a power cut a slow disk may have a thousand containers to
// look up.
const readyLimit = 10 * time.Minute

// startNodes runs the agent of each node of this process and waits until the
// kubelet APIs listen.
func (p *process) startNodes(ctx context.Context) error {
	if err := p.waitNamespaces(ctx); err != nil {
		return fmt.Errorf("waiting for namespace %s: %w", corev1.NamespaceNodeLease, err)
	}
	if err := p.fleet.begin(ctx); err != nil {
		return err
	}
	if p.host == nil {
		return nil
	}
	return p.host.startNode(ctx)
}

// agentConfig is what agents of all kinds share.
func (p *process) agentConfig(name string) (agent.Config, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return agent.Config{}, err
	}
	client, err := p.api.Client("node:" + name)
	if err != nil {
		return agent.Config{}, errors.Join(err, listener.Close())
	}
	p.kubelets.add(name, listener.Addr().String())
	return agent.Config{
		NodeName:      name,
		Client:        client,
		ListWatch:     p.api.ListWatch,
		ClusterDomain: clusterDomain,
		Events:        p.recorder(corev1.EventSource{Component: "kubelet", Host: name}),
		Log:           p.log,
		KubeletListen: listener,
		KubeletTLS:    p.pki.ServingConfig(pki.Serving{Name: "mend-agent", Hosts: []string{"127.0.0.1", name}, RequireClient: true}),
	}, nil
}

// hostAddress is the address from which this machine reaches others, or "" on a
// machine without a network; hostAddress6 is the same of IPv6.
func hostAddress() string { return addressTowards("192.0.2.1:9") }

func hostAddress6() string { return addressTowards("[2001:db8::1]:9") }

// addressTowards is the address from which an address would be reached.
func addressTowards(other string) string {
	// Connecting a datagram socket sends nothing: it only asks for the route. The
	// address is one that documentation reserves.
	conn, err := net.Dial("udp", other)
	if err != nil {
		return ""
	}
	defer conn.Close()
	address, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok || address.IP.IsLoopback() || address.IP.IsUnspecified() || address.IP.IsLinkLocalUnicast() && address.IP.To4() == nil {
		return ""
	}
	return address.IP.String()
}

// waitReady returns when every node of this process is Ready.
func (p *process) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	client, err := kubernetes.NewForConfig(p.api.ClientConfig("up"))
	if err != nil {
		return err
	}
	for _, name := range slices.Concat(p.nodeNames, p.fleet.names()) {
		if err := waitNode(ctx, client, name, p.failed); err != nil {
			return err
		}
	}
	return nil
}

// waitNode returns when the node is Ready, or with what comes out of failed.
func waitNode(ctx context.Context, client kubernetes.Interface, name string, failed <-chan error) error {
	watching, err := client.CoreV1().Nodes().Watch(ctx, named(name))
	if err != nil {
		return err
	}
	why := "it has not registered"
	err = until(ctx, watching, failed, func(object runtime.Object) bool {
		node, ok := object.(*corev1.Node)
		if !ok {
			return false
		}
		var ready bool
		ready, why = readiness(node)
		return ready
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("node %s is not Ready after %s: %s", name, readyLimit, why)
	}
	return err
}

// waitNamespaces returns when the namespaces exist that nodes and people need;
// the API server makes this one last.
func (p *process) waitNamespaces(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	client, err := kubernetes.NewForConfig(p.api.ClientConfig("up"))
	if err != nil {
		return err
	}
	watching, err := client.CoreV1().Namespaces().Watch(ctx, named(corev1.NamespaceNodeLease))
	if err != nil {
		return err
	}
	return until(ctx, watching, p.failed, func(runtime.Object) bool { return true })
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

// until follows a watch until an object is as wanted, or a part of the process
// has failed.
func until(ctx context.Context, watching watch.Interface, failed <-chan error, reached func(runtime.Object) bool) error {
	defer watching.Stop()
	for {
		select {
		case event, ok := <-watching.ResultChan():
			if !ok {
				return cmp.Or(ctx.Err(), errors.New("a watch ended while mend started"))
			}
			if event.Type != watch.Error && reached(event.Object) {
				return nil
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

package agent

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"

	"mend/internal/agent/podspec"
	"mend/internal/agent/status"
)

// admit decides whether the node takes a Pod it has not seen before. The
// scheduler decided already; but a Pod may name its node itself, and two
// decisions may have crossed. nil: it does.
func (a *Agent) admit(pod *v1.Pod) *status.Verdict {
	var others []*v1.Pod
	for _, p := range a.snapshot() {
		p.mu.Lock()
		other, refused := p.api, p.refused
		p.mu.Unlock()
		if other == nil || other.UID == pod.UID || refused != nil || podutil.IsPodTerminal(other) {
			continue
		}
		others = append(others, other)
	}
	verdict := refuse(pod, a.node.Current(), others)
	if verdict != nil {
		a.event(pod, "", "", v1.EventTypeWarning, verdict.Reason, verdict.Message)
		verdict.Message = "Pod was rejected: " + verdict.Message
	}
	return verdict
}

// refuse says why a node that holds others cannot take pod; nil if it can.
func refuse(pod *v1.Pod, node *v1.Node, others []*v1.Pod) *status.Verdict {
	if os := pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return &status.Verdict{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if v := short(pod, node, others); v != nil {
		return v
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !fits {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if !portsFree(pod, others) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	return nil
}

func predicate(name, why string) *status.Verdict {
	return &status.Verdict{Reason: name, Message: fmt.Sprintf("Predicate %s failed: %s", name, why)}
}

// short compares what the Pod requests with what is left. A resource that the node
// does not know is the cluster's, not the node's.
func short(pod *v1.Pod, node *v1.Node, others []*v1.Pod) *status.Verdict {
	room := node.Status.Allocatable
	if pods, ok := room[v1.ResourcePods]; ok && int64(len(others)+1) > pods.Value() {
		return insufficient(v1.ResourcePods, 1, int64(len(others)), pods.Value())
	}
	used := v1.ResourceList{}
	for _, other := range others {
		for name, q := range resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range inOrder(requests) {
		request, have := requests[name], room[name]
		if _, known := room[name]; !known || request.IsZero() {
			continue
		}
		taken := used[name]
		sum := taken.DeepCopy()
		sum.Add(request)
		if sum.Cmp(have) > 0 {
			return insufficient(name, amount(name, request), amount(name, taken), amount(name, have))
		}
	}
	return nil
}

func insufficient(name v1.ResourceName, requested, used, capacity int64) *status.Verdict {
	return &status.Verdict{Reason: "OutOf" + string(name), Message: fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity)}
}

// portsFree says whether no other Pod holds a host port that pod wants.
func portsFree(pod *v1.Pod, others []*v1.Pod) bool {
	wanted := hostPorts(pod)
	if len(wanted) == 0 {
		return true
	}
	for _, other := range others {
		for _, held := range hostPorts(other) {
			for _, w := range wanted {
				if w.clashes(held) {
					return false
				}
			}
		}
	}
	return true
}

type hostPort struct {
	ip       string
	port     int32
	protocol v1.Protocol
}

func (p hostPort) clashes(q hostPort) bool {
	return p.port == q.port && p.protocol == q.protocol && (p.ip == q.ip || p.ip == anyAddress || q.ip == anyAddress)
}

const anyAddress = "0.0.0.0"

func hostPorts(pod *v1.Pod) []hostPort {
	var all []hostPort
	for c := range eachContainer(&pod.Spec) {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			h := hostPort{ip: p.HostIP, port: p.HostPort, protocol: p.Protocol}
			if h.ip == "" {
				h.ip = anyAddress
			}
			if h.protocol == "" {
				h.protocol = v1.ProtocolTCP
			}
			all = append(all, h)
		}
	}
	return all
}

// weighTier gives the burstable tier the weight of the Pods in it, and best
// effort the least there is.
func (a *Agent) weighTier(pod *v1.Pod) error {
	class := qos.GetPodQOS(pod)
	var milli int64
	if class == v1.PodQOSBurstable {
		for _, p := range a.snapshot() {
			p.mu.Lock()
			other := p.api
			p.mu.Unlock()
			if other == nil || qos.GetPodQOS(other) != class || podutil.IsPodTerminal(other) {
				continue
			}
			requests := resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{})
			milli += requests.Cpu().MilliValue()
		}
	}
	if class == v1.PodQOSGuaranteed {
		return nil
	}
	return a.cgroups.Ensure(a.host.TierCgroup(class), podspec.PodLimits{Shares: podspec.Shares(milli)})
}

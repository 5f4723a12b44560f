package agent

import (
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	verdict := a.room.take(pod, a.node.Current())
	if verdict != nil {
		a.event(pod, "", "", v1.EventTypeWarning, verdict.Reason, verdict.Message)
		verdict.Message = "Pod was rejected: " + verdict.Message
	}
	return verdict
}

// room is the sum of what the Pods of the node hold, kept as they come and go: a
// node may have thousands.
type room struct {
	mu    sync.Mutex
	held  map[types.UID]v1.ResourceList
	used  v1.ResourceList
	ports map[types.UID][]hostPort
}

func newRoom() *room {
	return &room{held: map[types.UID]v1.ResourceList{}, used: v1.ResourceList{}, ports: map[types.UID][]hostPort{}}
}

// take gives the Pod its room, or says why there is none.
func (r *room) take(pod *v1.Pod, node *v1.Node) *status.Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if verdict := r.refuse(pod, node); verdict != nil {
		return verdict
	}
	r.add(pod)
	return nil
}

// hold gives room to a Pod that is here already.
func (r *room) hold(pod *v1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(pod)
}

func (r *room) add(pod *v1.Pod) {
	if _, held := r.held[pod.UID]; held {
		return
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	r.held[pod.UID] = requests
	for name, q := range requests {
		sum := r.used[name]
		sum.Add(q)
		r.used[name] = sum
	}
	if ports := hostPorts(pod); len(ports) > 0 {
		r.ports[pod.UID] = ports
	}
}

// leave takes the room of a Pod back.
func (r *room) leave(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, q := range r.held[uid] {
		sum := r.used[name]
		sum.Sub(q)
		r.used[name] = sum
	}
	delete(r.held, uid)
	delete(r.ports, uid)
}

// refuse says why a node that holds what r says cannot take pod; nil if it can.
func (r *room) refuse(pod *v1.Pod, node *v1.Node) *status.Verdict {
	if os := pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return &status.Verdict{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if v := forbiddenSysctl(pod); v != nil {
		return v
	}
	if v := r.short(pod, node.Status.Allocatable); v != nil {
		return v
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !fits {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if !r.portsFree(hostPorts(pod)) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	return nil
}

func predicate(name, why string) *status.Verdict {
	return &status.Verdict{Reason: name, Message: fmt.Sprintf("Predicate %s failed: %s", name, why)}
}

// short compares what the Pod requests with what is left. A resource that the node
// does not know is the cluster's, not the node's.
func (r *room) short(pod *v1.Pod, allocatable v1.ResourceList) *status.Verdict {
	if pods, ok := allocatable[v1.ResourcePods]; ok && int64(len(r.held)+1) > pods.Value() {
		return insufficient(v1.ResourcePods, 1, int64(len(r.held)), pods.Value())
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range inOrder(requests) {
		request := requests[name]
		have, known := allocatable[name]
		if !known || request.IsZero() {
			continue
		}
		used := r.used[name]
		sum := used.DeepCopy()
		sum.Add(request)
		if sum.Cmp(have) > 0 {
			return insufficient(name, amount(name, request), amount(name, used), amount(name, have))
		}
	}
	return nil
}

func insufficient(name v1.ResourceName, requested, used, capacity int64) *status.Verdict {
	return &status.Verdict{Reason: "OutOf" + string(name), Message: fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity)}
}

// portsFree says whether no Pod holds a host port that is wanted.
func (r *room) portsFree(wanted []hostPort) bool {
	for _, held := range r.ports {
		for _, h := range held {
			if slices.ContainsFunc(wanted, h.clashes) {
				return false
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

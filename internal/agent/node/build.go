package node

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

// Upstream's bounds on the list of images.
const (
	maxImages        = 50
	maxNamesPerImage = 5
)

// Observed is what was found out about the machine and its runtime.
type Observed struct {
	Machine        Machine
	Reserve        v1.ResourceList
	IPs            []string
	KubeletPort    int32
	KubeletVersion string
	Pressure       Pressure
	Runtime        RuntimeState
	Images         []*runtimeapi.Image
}

// RuntimeState is what the container runtime says of itself. Err is why it did
// not answer.
type RuntimeState struct {
	Err        error
	Name       string
	Version    string
	Conditions []*runtimeapi.RuntimeCondition
	Handlers   []*runtimeapi.RuntimeHandler
	Features   *runtimeapi.RuntimeFeatures
}

// build is have with everything that is the agent's to write. Conditions get now
// as their heartbeat.
func build(have *v1.Node, o Observed, now time.Time) *v1.Node {
	n := have.DeepCopy()
	s := &n.Status
	setCapacity(s, o)
	s.NodeInfo = o.Machine.Info
	s.NodeInfo.KubeletVersion = o.KubeletVersion
	s.NodeInfo.ContainerRuntimeVersion = have.Status.NodeInfo.ContainerRuntimeVersion
	if o.Runtime.Err == nil {
		s.NodeInfo.ContainerRuntimeVersion = o.Runtime.Name + "://" + o.Runtime.Version
		s.RuntimeHandlers = handlers(o.Runtime.Handlers)
		s.Features = features(o.Runtime.Features)
	}
	s.Addresses = nil
	for _, ip := range o.IPs {
		s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: n.Name})
	s.DaemonEndpoints.KubeletEndpoint.Port = o.KubeletPort
	if o.Images != nil {
		s.Images = images(o.Images)
	}
	for _, c := range conditions(o, s.Capacity) {
		setCondition(s, c, now)
	}
	return n
}

// setCapacity keeps what others put into capacity, and derives allocatable from
// all of it.
func setCapacity(s *v1.NodeStatus, o Observed) {
	capacity := maps.Clone(s.Capacity)
	if capacity == nil {
		capacity = v1.ResourceList{}
	}
	maps.Copy(capacity, o.Machine.Capacity)
	allocatable := v1.ResourceList{}
	for name, q := range capacity {
		left := q.DeepCopy()
		if kept, ok := o.Reserve[name]; ok {
			left.Sub(kept)
		}
		allocatable[name] = atLeastZero(left)
	}
	for name, q := range capacity {
		if v1helper.IsHugePageResourceName(name) {
			memory := allocatable[v1.ResourceMemory]
			memory.Sub(q)
			allocatable[v1.ResourceMemory] = atLeastZero(memory)
		}
	}
	s.Capacity, s.Allocatable = capacity, allocatable
}

func atLeastZero(q resource.Quantity) resource.Quantity {
	if q.Sign() < 0 {
		q.Set(0)
	}
	return q
}

func handlers(all []*runtimeapi.RuntimeHandler) []v1.NodeRuntimeHandler {
	var out []v1.NodeRuntimeHandler
	for _, h := range all {
		readonly, users := h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
		out = append(out, v1.NodeRuntimeHandler{Name: h.Name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &readonly, UserNamespaces: &users,
		}})
	}
	return out
}

func features(f *runtimeapi.RuntimeFeatures) *v1.NodeFeatures {
	if f == nil {
		return nil
	}
	policy := f.SupplementalGroupsPolicy
	return &v1.NodeFeatures{SupplementalGroupsPolicy: &policy}
}

// images lists the largest first.
func images(all []*runtimeapi.Image) []v1.ContainerImage {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *runtimeapi.Image) int {
		if a.Size != b.Size {
			if a.Size > b.Size {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Id, b.Id)
	})
	sorted = sorted[:min(len(sorted), maxImages)]
	var out []v1.ContainerImage
	for _, i := range sorted {
		names := slices.Concat(i.RepoDigests, i.RepoTags)
		out = append(out, v1.ContainerImage{Names: names[:min(len(names), maxNamesPerImage)], SizeBytes: int64(i.Size)})
	}
	return out
}

// conditions in the order in which people see them; Ready is the last.
func conditions(o Observed, capacity v1.ResourceList) []v1.NodeCondition {
	return []v1.NodeCondition{
		pressure(v1.NodeMemoryPressure, o.Pressure.Memory,
			"KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
			"KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		pressure(v1.NodeDiskPressure, o.Pressure.Disk,
			"KubeletHasDiskPressure", "kubelet has disk pressure",
			"KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		pressure(v1.NodePIDPressure, o.Pressure.PID,
			"KubeletHasInsufficientPID", "kubelet has insufficient PID available",
			"KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		ready(o, capacity),
	}
}

func pressure(kind v1.NodeConditionType, is bool, yes, yesText, no, noText string) v1.NodeCondition {
	if is {
		return v1.NodeCondition{Type: kind, Status: v1.ConditionTrue, Reason: yes, Message: yesText}
	}
	return v1.NodeCondition{Type: kind, Status: v1.ConditionFalse, Reason: no, Message: noText}
}

func ready(o Observed, capacity v1.ResourceList) v1.NodeCondition {
	why := o.Runtime.problems()
	var missing []string
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage} {
		if _, ok := capacity[name]; !ok {
			missing = append(missing, string(name))
		}
	}
	if len(missing) > 0 {
		why = append(why, "missing node capacity for resources: "+strings.Join(missing, ", "))
	}
	switch len(why) {
	case 0:
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	case 1:
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady", Message: why[0]}
	}
	return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady",
		Message: "[" + strings.Join(why, ", ") + "]"}
}

// problems are why the runtime cannot run Pods.
func (r RuntimeState) problems() []string {
	if r.Err != nil {
		return []string{fmt.Sprintf("container runtime is down: %v", r.Err)}
	}
	var why []string
	for kind, text := range map[string]string{
		runtimeapi.RuntimeReady: "container runtime not ready",
		runtimeapi.NetworkReady: "container runtime network not ready",
	} {
		at := slices.IndexFunc(r.Conditions, func(c *runtimeapi.RuntimeCondition) bool { return c.Type == kind })
		switch {
		case at < 0:
			why = append(why, text+": <nil>")
		case !r.Conditions[at].Status:
			c := r.Conditions[at]
			why = append(why, fmt.Sprintf("%s: %s=%t reason:%s message:%s", text, c.Type, c.Status, c.Reason, c.Message))
		}
	}
	slices.Sort(why)
	slices.Reverse(why) // the runtime before its network
	return why
}

func setCondition(s *v1.NodeStatus, c v1.NodeCondition, now time.Time) {
	c.LastHeartbeatTime = metav1.NewTime(now)
	c.LastTransitionTime = c.LastHeartbeatTime
	at := slices.IndexFunc(s.Conditions, func(have v1.NodeCondition) bool { return have.Type == c.Type })
	if at < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[at].Status == c.Status {
		c.LastTransitionTime = s.Conditions[at].LastTransitionTime
	}
	s.Conditions[at] = c
}

// differs says whether two nodes differ in more than heartbeats.
func differs(a, b *v1.Node) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, n := range []*v1.Node{a, b} {
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return !equality.Semantic.DeepEqual(a.Status, b.Status) || !equality.Semantic.DeepEqual(a.Labels, b.Labels)
}

// standardLabels are those every node carries.
func standardLabels(name string) map[string]string {
	return map[string]string{
		v1.LabelHostname:          name,
		v1.LabelOSStable:          containerOS,
		v1.LabelArchStable:        runtime.GOARCH,
		"beta.kubernetes.io/os":   containerOS,
		"beta.kubernetes.io/arch": runtime.GOARCH,
	}
}

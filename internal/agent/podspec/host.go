package podspec

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// Host holds what is the same for every Pod of this node.
type Host struct {
	NodeName      string
	NodeIPs       []string // primary first
	ClusterDomain string   // may be empty
	ClusterDNS    []string // addresses; may be empty
	ResolvConf    string   // path; "" means no resolver
	LogDir        string   // pod logs, absolute
	PodsDir       string   // per-Pod files, absolute
	SeccompDir    string   // local seccomp profiles, absolute
	CgroupParent  string   // "/mend-<id>"
	UnifiedCgroup bool     // cgroup v2
	// MemoryCapacity is the node's memory in bytes.
	MemoryCapacity int64
	// Allocatable are the limits the downward API shows where a container has none.
	Allocatable v1.ResourceList
	// MinOOMScore is the lowest oom_score_adj this process may set: -1000 with
	// CAP_SYS_RESOURCE, otherwise its own score.
	MinOOMScore int64
}

// Sources gives the objects that a Pod refers to. Errors for missing ones must
// satisfy apierrors.IsNotFound and read as the kubelet's (`configmap "x" not found`).
// Calls may block on the API server and are bounded by ctx.
type Sources interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Services lists all Services known, of every namespace.
	Services() ([]*v1.Service, error)
}

// Desc names a Pod in messages: "name_namespace(uid)".
func Desc(pod *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// PodDir holds the Pod's own files on the node.
func (h Host) PodDir(uid types.UID) string { return filepath.Join(h.PodsDir, string(uid)) }

// ContainerDir holds a container's termination messages.
func (h Host) ContainerDir(uid types.UID, container string) string {
	return filepath.Join(h.PodDir(uid), "containers", container)
}

// PodLogDir is where the Pod's containers log.
func (h Host) PodLogDir(namespace, name string, uid types.UID) string {
	return filepath.Join(h.LogDir, namespace+"_"+name+"_"+string(uid))
}

// ContainerLog is the log of one instance of a container, absolute.
func (h Host) ContainerLog(pod *v1.Pod, container string, attempt uint32) string {
	return filepath.Join(h.PodLogDir(pod.Namespace, pod.Name, pod.UID), logPath(container, attempt))
}

// logPath is relative to the Pod's log directory.
func logPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// PodCgroup is the Pod's cgroup: its QoS tier and a directory whose name carries
// the UID, as tools expect.
func (h Host) PodCgroup(pod *v1.Pod) string {
	return filepath.Join(h.TierCgroup(qos.GetPodQOS(pod)), "pod"+string(pod.UID))
}

// TierCgroup is the cgroup of a QoS class. Guaranteed Pods have no tier of their
// own: they compete at the top.
func (h Host) TierCgroup(class v1.PodQOSClass) string {
	switch class {
	case v1.PodQOSBurstable:
		return filepath.Join(h.CgroupParent, "burstable")
	case v1.PodQOSBestEffort:
		return filepath.Join(h.CgroupParent, "besteffort")
	case v1.PodQOSGuaranteed:
		return h.CgroupParent
	}
	return h.CgroupParent
}

// FieldPath names a container inside its Pod, as events refer to it:
// "spec.containers{web}".
func FieldPath(pod *v1.Pod, container string) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == container {
			return fmt.Sprintf("spec.initContainers{%s}", container)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == container {
			return fmt.Sprintf("spec.ephemeralContainers{%s}", container)
		}
	}
	return fmt.Sprintf("spec.containers{%s}", container)
}

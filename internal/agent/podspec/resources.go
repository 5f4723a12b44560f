package podspec

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// Kernel units. A CPU is 1024 shares and 100 ms of each 100 ms period; a quota
// under 1 ms is refused by the kernel.
const (
	minShares      = 2
	maxShares      = 262144
	sharesPerCPU   = 1024
	quotaPeriodUS  = 100_000
	minQuotaUS     = 1_000
	milliPerCPU    = 1000
	nodeCritical   = "system-node-critical"
	guaranteedOOM  = -997
	bestEffortOOM  = 1000
	burstableFloor = 1000 + guaranteedOOM // a burstable Pod goes before a guaranteed one
)

// Shares converts thousandths of a CPU to cpu.shares. 500m → 512; 0 → 2.
func Shares(milli int64) int64 {
	return min(max(milli*sharesPerCPU/milliPerCPU, minShares), maxShares)
}

// Quota converts thousandths of a CPU to microseconds per 100 ms period. 500m →
// 50,000; 0 → 0, no limit.
func Quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*quotaPeriodUS/milliPerCPU, minQuotaUS)
}

// linuxResources are those of a container or sandbox. request is nil where none
// is declared: the limit stands in for it.
func linuxResources(request, limit, memoryLimit *resource.Quantity) *runtimeapi.LinuxContainerResources {
	if request == nil {
		request = limit
	}
	return &runtimeapi.LinuxContainerResources{
		CpuShares:          Shares(request.MilliValue()),
		CpuQuota:           Quota(limit.MilliValue()),
		CpuPeriod:          quotaPeriodUS,
		MemoryLimitInBytes: memoryLimit.Value(),
	}
}

func declared(list v1.ResourceList, name v1.ResourceName) *resource.Quantity {
	if q, ok := list[name]; ok {
		return &q
	}
	return nil
}

func (h Host) containerResources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	cpu, memory := c.Resources.Limits.Cpu(), c.Resources.Limits.Memory()
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		// A container without a limit of its own is bounded by the Pod's.
		if cpu.IsZero() {
			cpu = pod.Spec.Resources.Limits.Cpu()
		}
		if memory.IsZero() {
			memory = pod.Spec.Resources.Limits.Memory()
		}
	}
	r := linuxResources(declared(c.Resources.Requests, v1.ResourceCPU), cpu, memory)
	r.OomScoreAdj = max(h.oomScore(pod, c), h.MinOOMScore)
	return r
}

// oomScore says how early the kernel should choose the container when memory
// runs out: a burstable container that requests 10 % of the node gets 900.
func (h Host) oomScore(pod *v1.Pod, c *v1.Container) int64 {
	if pod.Spec.PriorityClassName == nodeCritical {
		return guaranteedOOM
	}
	switch qos.GetPodQOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteedOOM
	case v1.PodQOSBestEffort:
		return bestEffortOOM
	case v1.PodQOSBurstable:
	}
	if h.MemoryCapacity <= 0 {
		return bestEffortOOM - 1
	}
	score := 1000 - 1000*c.Resources.Requests.Memory().Value()/h.MemoryCapacity
	if podutil.IsRestartableInitContainer(c) {
		// A sidecar lives at least as long as what it serves.
		least := int64(-1)
		for i := range pod.Spec.Containers {
			request := pod.Spec.Containers[i].Resources.Requests.Memory().Value()
			if least < 0 || request < least {
				least = request
			}
		}
		score = min(score, 1000-1000*max(least, 0)/h.MemoryCapacity)
	}
	return min(max(score, burstableFloor), bestEffortOOM-1)
}

// sandboxResources sum up the Pod, for runtimes that size the sandbox by it.
func sandboxResources(pod *v1.Pod) *runtimeapi.LinuxContainerResources {
	opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := resourcehelper.PodRequests(pod, opts), resourcehelper.PodLimits(pod, opts)
	return linuxResources(declared(requests, v1.ResourceCPU), limits.Cpu(), limits.Memory())
}

func overhead(pod *v1.Pod) *runtimeapi.LinuxContainerResources {
	if pod.Spec.Overhead == nil {
		return &runtimeapi.LinuxContainerResources{}
	}
	return linuxResources(pod.Spec.Overhead.Cpu(), pod.Spec.Overhead.Cpu(), pod.Spec.Overhead.Memory())
}

// PodLimits is what the Pod's own cgroup is set to. A zero quota or memory means
// no limit.
type PodLimits struct {
	Shares  int64 // cpu.shares
	QuotaUS int64 // per 100 ms
	Memory  int64 // bytes
}

// CgroupLimits are the limits of the Pod as a whole: its requests as shares, and
// the sum of its containers' limits where every one of them has a limit.
func CgroupLimits(pod *v1.Pod) PodLimits {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	result := PodLimits{Shares: Shares(requests.Cpu().MilliValue())}
	if qos.GetPodQOS(pod) == v1.PodQOSBestEffort {
		return PodLimits{Shares: minShares}
	}
	cpu, memory := true, true
	for c := range podutil.ContainerIter(&pod.Spec, podutil.InitContainers|podutil.Containers) {
		cpu = cpu && !c.Resources.Limits.Cpu().IsZero()
		memory = memory && !c.Resources.Limits.Memory().IsZero()
	}
	if r := pod.Spec.Resources; r != nil {
		cpu = cpu || !r.Limits.Cpu().IsZero()
		memory = memory || !r.Limits.Memory().IsZero()
	}
	if cpu {
		result.QuotaUS = Quota(limits.Cpu().MilliValue())
	}
	if memory {
		result.Memory = limits.Memory().Value()
	}
	return result
}

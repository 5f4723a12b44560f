package kubeletapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// usage turns what the runtime counts into kubelet's summary. Rates that the runtime
// does not give come from the difference to an earlier look.
type usage struct {
	config Config

	mu      sync.Mutex
	earlier map[string]sample // by container or sandbox ID, or "node"
}

type sample struct {
	at    time.Time
	total uint64 // core-nanoseconds
	rate  *uint64
}

// minWindow is the shortest time over which a rate means something.
const minWindow = time.Second

func newUsage(config Config) *usage {
	return &usage{config: config, earlier: map[string]sample{}}
}

// summary asks the runtime once. Pods that have gone are forgotten.
func (u *usage) summary(ctx context.Context) (*stats.Summary, error) {
	boxes, err := u.config.Runtime.ListPodSandboxStats(ctx, &runtimeapi.PodSandboxStatsFilter{})
	if err != nil {
		return nil, fmt.Errorf("failed to list pod stats: %w", err)
	}
	pods := map[string]*v1.Pod{}
	for _, pod := range u.config.Pods.Pods() {
		pods[string(pod.UID)] = pod
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.earlier
	u.earlier = make(map[string]sample, len(before))
	made := &stats.Summary{Pods: []stats.PodStats{}}
	for _, box := range boxes {
		meta := box.GetAttributes().GetMetadata()
		pod := pods[meta.GetUid()]
		if active, ok := u.config.Pods.SandboxID(typesUID(meta.GetUid())); pod == nil || !ok || active != box.Attributes.Id {
			continue // of a Pod that is gone, or a sandbox that was replaced
		}
		made.Pods = append(made.Pods, u.podStats(pod, box, before))
	}
	slices.SortFunc(made.Pods, func(a, b stats.PodStats) int {
		return cmp.Or(cmp.Compare(a.PodRef.Namespace, b.PodRef.Namespace), cmp.Compare(a.PodRef.Name, b.PodRef.Name))
	})
	made.Node = u.nodeStats(ctx, before)
	return made, nil
}

func (u *usage) podStats(pod *v1.Pod, box *runtimeapi.PodSandboxStats, before map[string]sample) stats.PodStats {
	made := stats.PodStats{
		PodRef:     stats.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		Containers: []stats.ContainerStats{},
	}
	if pod.Status.StartTime != nil {
		made.StartTime = *pod.Status.StartTime
	}
	linux := box.GetLinux()
	made.CPU = u.cpu(box.Attributes.Id, linux.GetCpu(), before)
	made.Memory = memory(linux.GetMemory())
	made.Network = networkUsage(linux.GetNetwork())
	if count := linux.GetProcess().GetProcessCount(); count != nil {
		made.ProcessStats = &stats.ProcessStats{ProcessCount: &count.Value}
	}
	for _, c := range linux.GetContainers() {
		made.Containers = append(made.Containers, stats.ContainerStats{
			Name:      c.GetAttributes().GetMetadata().GetName(),
			StartTime: startOf(pod, c.GetAttributes().GetMetadata().GetName()),
			CPU:       u.cpu(c.GetAttributes().GetId(), c.GetCpu(), before),
			Memory:    memory(c.GetMemory()),
			Rootfs:    filesystem(c.GetWritableLayer()),
			Swap:      swap(c.GetSwap()),
		})
	}
	slices.SortFunc(made.Containers, func(a, b stats.ContainerStats) int { return cmp.Compare(a.Name, b.Name) })
	return made
}

func startOf(pod *v1.Pod, container string) metav1.Time {
	for _, statuses := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			if statuses[i].Name == container && statuses[i].State.Running != nil {
				return statuses[i].State.Running.StartedAt
			}
		}
	}
	return metav1.Time{}
}

// cpu completes what the runtime counted by a rate. Callers hold u.mu.
func (u *usage) cpu(id string, counted *runtimeapi.CpuUsage, before map[string]sample) *stats.CPUStats {
	if counted == nil || counted.UsageCoreNanoSeconds == nil {
		return nil
	}
	at, total := time.Unix(0, counted.Timestamp), counted.UsageCoreNanoSeconds.Value
	made := &stats.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: &total}
	made.UsageNanoCores = u.rate(id, at, total, before)
	if given := counted.GetUsageNanoCores(); given != nil {
		made.UsageNanoCores = &given.Value
	}
	return made
}

// rate is the use per second since the look before; nil at the first.
func (u *usage) rate(id string, at time.Time, total uint64, before map[string]sample) *uint64 {
	last, known := before[id]
	if known && at.Sub(last.at) < minWindow {
		u.earlier[id] = last
		return last.rate
	}
	next := sample{at: at, total: total}
	if known && total >= last.total {
		rate := uint64(float64(total-last.total) / at.Sub(last.at).Seconds())
		next.rate = &rate
	}
	u.earlier[id] = next
	return next.rate
}

func value(counted *runtimeapi.UInt64Value) *uint64 {
	if counted == nil {
		return nil
	}
	number := counted.Value
	return &number
}

func memory(counted *runtimeapi.MemoryUsage) *stats.MemoryStats {
	if counted == nil {
		return nil
	}
	return &stats.MemoryStats{
		Time:            metav1.NewTime(time.Unix(0, counted.Timestamp)),
		AvailableBytes:  value(counted.AvailableBytes),
		UsageBytes:      value(counted.UsageBytes),
		WorkingSetBytes: value(counted.WorkingSetBytes),
		RSSBytes:        value(counted.RssBytes),
		PageFaults:      value(counted.PageFaults),
		MajorPageFaults: value(counted.MajorPageFaults),
	}
}

func swap(counted *runtimeapi.SwapUsage) *stats.SwapStats {
	if counted == nil {
		return nil
	}
	return &stats.SwapStats{
		Time:               metav1.NewTime(time.Unix(0, counted.Timestamp)),
		SwapAvailableBytes: value(counted.SwapAvailableBytes),
		SwapUsageBytes:     value(counted.SwapUsageBytes),
	}
}

func networkUsage(counted *runtimeapi.NetworkUsage) *stats.NetworkStats {
	if counted.GetDefaultInterface() == nil {
		return nil
	}
	made := &stats.NetworkStats{
		Time:           metav1.NewTime(time.Unix(0, counted.Timestamp)),
		InterfaceStats: networkInterface(counted.DefaultInterface),
		Interfaces:     []stats.InterfaceStats{networkInterface(counted.DefaultInterface)},
	}
	for _, other := range counted.Interfaces {
		if other.Name != counted.DefaultInterface.Name {
			made.Interfaces = append(made.Interfaces, networkInterface(other))
		}
	}
	return made
}

func networkInterface(counted *runtimeapi.NetworkInterfaceUsage) stats.InterfaceStats {
	return stats.InterfaceStats{
		Name:    counted.Name,
		RxBytes: value(counted.RxBytes), RxErrors: value(counted.RxErrors),
		TxBytes: value(counted.TxBytes), TxErrors: value(counted.TxErrors),
	}
}

func filesystem(counted *runtimeapi.FilesystemUsage) *stats.FsStats {
	if counted == nil {
		return nil
	}
	made := &stats.FsStats{
		Time:       metav1.NewTime(time.Unix(0, counted.Timestamp)),
		UsedBytes:  value(counted.UsedBytes),
		InodesUsed: value(counted.InodesUsed),
	}
	addCapacity(made, counted.GetFsId().GetMountpoint())
	return made
}

// addCapacity fills in what the filesystem behind a path has in all; what the runtime
// counts is only its own part.
func addCapacity(made *stats.FsStats, path string) {
	var system syscall.Statfs_t
	if path == "" || syscall.Statfs(path, &system) != nil {
		return
	}
	block := uint64(system.Bsize)
	capacity, available := system.Blocks*block, system.Bavail*block
	inodes, free := system.Files, system.Ffree
	made.CapacityBytes, made.AvailableBytes = &capacity, &available
	made.Inodes, made.InodesFree = &inodes, &free
}

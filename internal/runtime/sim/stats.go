package sim

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats are zeros, but valid.
func (r *Runtime) ContainerStats(_ context.Context, id string) (*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound(id)
	}
	return r.containerStats(c), nil
}

// ListContainerStats has the running containers.
func (r *Runtime) ListContainerStats(_ context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := []*runtimeapi.ContainerStats{}
	for _, c := range r.sortedContainers() {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING &&
			(filter.GetId() == "" || filter.Id == c.id) &&
			(filter.GetPodSandboxId() == "" || filter.PodSandboxId == c.box.id) &&
			hasLabels(c.config.Labels, filter.GetLabelSelector()) {
			found = append(found, r.containerStats(c))
		}
	}
	return found, nil
}

func (r *Runtime) containerStats(c *container) *runtimeapi.ContainerStats {
	now := r.clock.Now().UnixNano()
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          c.id,
			Metadata:    c.config.Metadata,
			Labels:      c.config.Labels,
			Annotations: c.config.Annotations,
		},
		Cpu:    zeroCPU(now),
		Memory: zeroMemory(now),
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp:  now,
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
			UsedBytes:  &runtimeapi.UInt64Value{},
			InodesUsed: &runtimeapi.UInt64Value{},
		},
	}
}

func zeroCPU(now int64) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{
		Timestamp:            now,
		UsageCoreNanoSeconds: &runtimeapi.UInt64Value{},
		UsageNanoCores:       &runtimeapi.UInt64Value{},
	}
}

func zeroMemory(now int64) *runtimeapi.MemoryUsage {
	return &runtimeapi.MemoryUsage{
		Timestamp:       now,
		WorkingSetBytes: &runtimeapi.UInt64Value{},
		UsageBytes:      &runtimeapi.UInt64Value{},
		RssBytes:        &runtimeapi.UInt64Value{},
		PageFaults:      &runtimeapi.UInt64Value{},
		MajorPageFaults: &runtimeapi.UInt64Value{},
	}
}

// PodSandboxStats fails with NotFound for an unknown sandbox.
func (r *Runtime) PodSandboxStats(_ context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	box := r.sandboxes[id]
	if box == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when trying to find sandbox %q: not found", id)
	}
	return r.sandboxStats(box), nil
}

// ListPodSandboxStats has the sandboxes that are ready.
func (r *Runtime) ListPodSandboxStats(_ context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := []*runtimeapi.PodSandboxStats{}
	for _, box := range r.sortedSandboxes() {
		if box.ready && (filter.GetId() == "" || filter.Id == box.id) &&
			hasLabels(box.config.Labels, filter.GetLabelSelector()) {
			found = append(found, r.sandboxStats(box))
		}
	}
	return found, nil
}

func (r *Runtime) sandboxStats(box *sandbox) *runtimeapi.PodSandboxStats {
	now := r.clock.Now().UnixNano()
	linux := &runtimeapi.LinuxPodSandboxStats{
		Cpu:    zeroCPU(now),
		Memory: zeroMemory(now),
		Network: &runtimeapi.NetworkUsage{Timestamp: now, DefaultInterface: &runtimeapi.NetworkInterfaceUsage{
			Name:    "eth0",
			RxBytes: &runtimeapi.UInt64Value{}, RxErrors: &runtimeapi.UInt64Value{},
			TxBytes: &runtimeapi.UInt64Value{}, TxErrors: &runtimeapi.UInt64Value{},
		}},
		Process: &runtimeapi.ProcessUsage{Timestamp: now, ProcessCount: &runtimeapi.UInt64Value{}},
	}
	for _, c := range box.members {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			linux.Containers = append(linux.Containers, r.containerStats(c))
			linux.Process.ProcessCount.Value++
		}
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id:          box.id,
			Metadata:    box.config.Metadata,
			Labels:      box.config.Labels,
			Annotations: box.config.Annotations,
		},
		Linux: linux,
	}
}

// ListMetricDescriptors is empty.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics is empty, as the descriptors are.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, nil
}

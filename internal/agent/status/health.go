package status

import (
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// setHealth fills in started and ready of every container.
func setHealth(in Input, s *v1.PodStatus) {
	for i := range s.ContainerStatuses {
		applyHealth(in, &s.ContainerStatuses[i])
	}
	for i := range s.InitContainerStatuses {
		c := &s.InitContainerStatuses[i]
		applyHealth(in, c)
		if !podutil.IsRestartableInitContainer(&in.Pod.Spec.InitContainers[i]) {
			// A plain init container is ready once it has done its work.
			c.Ready = c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
		}
	}
}

func applyHealth(in Input, c *v1.ContainerStatus) {
	h := in.Health[bareID(c.ContainerID)]
	running := c.State.Running != nil
	started := running && h.Started
	c.Started, c.Ready = &started, started && h.Ready
}

// HealthIn is what a status says of the container with that (bare) ID.
func HealthIn(s v1.PodStatus, id string) Health {
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		for i := range list {
			if c := &list[i]; bareID(c.ContainerID) == id {
				return Health{Started: c.Started != nil && *c.Started, Ready: c.Ready}
			}
		}
	}
	return Health{}
}

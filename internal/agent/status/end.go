package status

import (
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// end gives every container of a Pod that ended an end, and the Pod a final
// phase. What ended unseen counts as failed.
func end(in Input, s *v1.PodStatus) {
	if wasInitialized(in.Pod, s) {
		for i := range s.ContainerStatuses {
			endContainer(&s.ContainerStatuses[i])
		}
	}
	begun := begunInit(s.InitContainerStatuses)
	for i := range begun {
		endContainer(&s.InitContainerStatuses[i])
	}
	if !podutil.IsPodPhaseTerminal(s.Phase) {
		s.Phase = v1.PodFailed
	}
}

func endContainer(c *v1.ContainerStatus) {
	if c.State.Terminated == nil {
		c.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason: reasonStatusUnknown, Message: messageVanished, ExitCode: exitKilled,
		}}
	}
}

// wasInitialized says whether regular containers may have run.
func wasInitialized(pod *v1.Pod, s *v1.PodStatus) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		if c.LastTerminationState.Terminated != nil || c.State.Waiting == nil {
			return true
		}
	}
	if len(s.InitContainerStatuses) == 0 {
		return false
	}
	last := len(s.InitContainerStatuses) - 1
	c := &s.InitContainerStatuses[last]
	if podutil.IsRestartableInitContainer(&pod.Spec.InitContainers[last]) {
		return c.State.Running != nil && c.Started != nil && *c.Started
	}
	for _, state := range []v1.ContainerState{c.State, c.LastTerminationState} {
		if state.Terminated != nil && state.Terminated.ExitCode == 0 {
			return true
		}
	}
	return false
}

// begunInit are the init containers up to the last that shows a trace of having
// run, at least one.
func begunInit(all []v1.ContainerStatus) []v1.ContainerStatus {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].State.Waiting == nil || all[i].LastTerminationState.Terminated != nil {
			return all[:i+1]
		}
	}
	return all[:min(len(all), 1)]
}

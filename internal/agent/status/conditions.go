package status

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// ours are the conditions that the agent alone writes.
var ours = []v1.PodConditionType{
	v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled,
}

func isOurs(c v1.PodCondition) bool { return slices.Contains(ours, c.Type) }

func foreignConditions(all []v1.PodCondition) []v1.PodCondition {
	return slices.DeleteFunc(slices.Clone(all), isOurs)
}

// conditions are those of others as they stand, then ours.
func conditions(in Input, s *v1.PodStatus) []v1.PodCondition {
	foreign := foreignConditions(in.Pod.Status.Conditions)
	all := slices.Concat(s.InitContainerStatuses, s.ContainerStatuses)
	containersReady := containersReady(in.Pod, all, s.Phase)
	mine := []v1.PodCondition{
		readyToStart(in),
		initialized(in.Pod, all, s.Phase),
		ready(in.Pod, foreign, containersReady),
		containersReady,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	for i := range mine {
		c := &mine[i]
		c.ObservedGeneration = podutil.CalculatePodConditionObservedGeneration(&in.Old, in.Pod.Generation, c.Type)
		c.LastTransitionTime = whole(in.Now)
		for _, before := range [][]v1.PodCondition{in.Old.Conditions, in.Pod.Status.Conditions} {
			if _, was := podutil.GetPodConditionFromList(before, c.Type); was != nil {
				if was.Status == c.Status {
					c.LastTransitionTime = was.LastTransitionTime
				}
				break
			}
		}
	}
	return append(foreign, mine...)
}

func readyToStart(in Input) v1.PodCondition {
	why := SandboxNeeded(in.Pod, in.Runtime)
	_, was := podutil.GetPodConditionFromList(in.Old.Conditions, v1.PodReadyToStartContainers)
	if in.Ended && was != nil && was.Status == v1.ConditionFalse {
		// The sandbox goes after the final status is written; that is no news.
		return *was
	}
	if why == "" {
		return v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue}
	}
	return v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse,
		Reason: reasonSandboxNotReady, Message: why}
}

func containersReady(pod *v1.Pod, statuses []v1.ContainerStatus, phase v1.PodPhase) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	var unknown, unready []string
	note := func(name string) {
		switch s, ok := podutil.GetContainerStatus(statuses, name); {
		case !ok:
			unknown = append(unknown, name)
		case !s.Ready:
			unready = append(unready, name)
		}
	}
	for i := range pod.Spec.InitContainers {
		if podutil.IsRestartableInitContainer(&pod.Spec.InitContainers[i]) {
			note(pod.Spec.InitContainers[i].Name)
		}
	}
	for i := range pod.Spec.Containers {
		note(pod.Spec.Containers[i].Name)
	}
	switch {
	case phase == v1.PodSucceeded && len(unknown) == 0:
		c.Reason = "PodCompleted"
	case phase == v1.PodFailed:
		c.Reason = "PodFailed"
	case len(unknown)+len(unready) > 0:
		c.Reason = "ContainersNotReady"
		c.Message = listing("unknown", unknown, "unready", unready)
	default:
		c.Status = v1.ConditionTrue
	}
	return c
}

func listing(kind1 string, names1 []string, kind2 string, names2 []string) string {
	var parts []string
	if len(names1) > 0 {
		parts = append(parts, fmt.Sprintf("containers with %s status: %s", kind1, names1))
	}
	if len(names2) > 0 {
		parts = append(parts, fmt.Sprintf("containers with %s status: %s", kind2, names2))
	}
	return strings.Join(parts, ", ")
}

// ready is ContainersReady and the Pod's readiness gates.
func ready(pod *v1.Pod, foreign []v1.PodCondition, containers v1.PodCondition) v1.PodCondition {
	c := containers
	c.Type = v1.PodReady
	if c.Status != v1.ConditionTrue {
		return c
	}
	var closed []string
	for _, gate := range pod.Spec.ReadinessGates {
		_, state := podutil.GetPodConditionFromList(foreign, gate.ConditionType)
		switch {
		case state == nil:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case state.Status != v1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, state.Status))
		}
	}
	if len(closed) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "ReadinessGatesNotReady", strings.Join(closed, ", ")
	}
	return c
}

func initialized(pod *v1.Pod, statuses []v1.ContainerStatus, phase v1.PodPhase) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	var unknown, incomplete []string
	for i := range pod.Spec.InitContainers {
		init := &pod.Spec.InitContainers[i]
		s, ok := podutil.GetContainerStatus(statuses, init.Name)
		switch {
		case !ok:
			unknown = append(unknown, init.Name)
		case podutil.IsRestartableInitContainer(init) && (s.Started == nil || !*s.Started),
			!podutil.IsRestartableInitContainer(init) && !s.Ready:
			incomplete = append(incomplete, init.Name)
		}
	}
	switch {
	case phase == v1.PodSucceeded && len(unknown) == 0:
		c.Reason = "PodCompleted"
	case hasRegularStarted(pod, statuses):
		// Sidecars that restart do not undo the initialization.
	case len(unknown)+len(incomplete) > 0:
		c.Status, c.Reason = v1.ConditionFalse, "ContainersNotInitialized"
		c.Message = listing("unknown", unknown, "incomplete", incomplete)
	}
	return c
}

func hasRegularStarted(pod *v1.Pod, statuses []v1.ContainerStatus) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool {
		s, ok := podutil.GetContainerStatus(statuses, c.Name)
		return ok && (s.State.Running != nil || s.State.Terminated != nil)
	})
}

package status

import (
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// tally counts containers by what their state means for the phase.
type tally struct {
	pendingInit, pendingSidecars, failedInit        int
	unknown, running, waiting, stopped, over, happy int
}

// Phase is the Pod's phase by its containers' states. ended says that none of
// them will be started again, initialized that a regular one has run.
//
//	an init container failed for good           Failed
//	an init container has not ended             Pending
//	a container has never run                   Pending
//	one runs                                    Running
//	all stopped, one will be restarted          Running
//	all stopped for good, all with code 0       Succeeded
//	all stopped for good                        Failed
func Phase(pod *v1.Pod, statuses []v1.ContainerStatus, ended, initialized bool) v1.PodPhase {
	t := count(pod, statuses)
	switch {
	case t.failedInit > 0:
		return v1.PodFailed
	case t.pendingInit > 0, t.pendingSidecars > 0 && !initialized, t.waiting > 0:
		return v1.PodPending
	case t.running > 0 && t.unknown == 0:
		return v1.PodRunning
	case t.running == 0 && t.stopped > 0 && t.unknown == 0:
		if !ended && t.stopped != t.over {
			return v1.PodRunning
		}
		if t.stopped == t.happy {
			return v1.PodSucceeded
		}
		return v1.PodFailed
	}
	return v1.PodPending
}

func count(pod *v1.Pod, statuses []v1.ContainerStatus) tally {
	var t tally
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		s, known := podutil.GetContainerStatus(statuses, c.Name)
		if podutil.IsRestartableInitContainer(c) {
			t.sidecar(s, known)
		} else {
			t.init(pod, c, s, known)
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s, known := podutil.GetContainerStatus(statuses, c.Name)
		t.regular(pod, c, s, known)
	}
	return t
}

func (t *tally) init(pod *v1.Pod, c *v1.Container, s v1.ContainerStatus, known bool) {
	end := s.State.Terminated
	if s.State.Waiting != nil {
		end = s.LastTerminationState.Terminated
	}
	switch {
	case !known, end == nil:
		t.pendingInit++
	case end.ExitCode != 0 && !podutil.ContainerShouldRestart(*c, pod.Spec, end.ExitCode):
		t.failedInit++
	}
}

func (t *tally) sidecar(s v1.ContainerStatus, known bool) {
	switch {
	case !known:
		t.unknown++
	case s.State.Running != nil:
		if s.Started == nil || !*s.Started {
			t.pendingSidecars++
		}
		t.running++
	case s.State.Terminated != nil:
	case s.State.Waiting != nil:
		if s.LastTerminationState.Terminated == nil {
			t.pendingSidecars++
			t.waiting++
		}
	default:
		t.pendingSidecars++
		t.unknown++
	}
}

func (t *tally) regular(pod *v1.Pod, c *v1.Container, s v1.ContainerStatus, known bool) {
	var end *v1.ContainerStateTerminated
	switch {
	case !known:
		t.unknown++
		return
	case s.State.Running != nil:
		t.running++
		return
	case s.State.Terminated != nil:
		end = s.State.Terminated
		if end.ExitCode == 0 {
			t.happy++
		}
	case s.State.Waiting != nil:
		if end = s.LastTerminationState.Terminated; end == nil {
			t.waiting++
			return
		}
	default:
		t.unknown++
		return
	}
	t.stopped++
	if !podutil.ContainerShouldRestart(*c, pod.Spec, end.ExitCode) {
		t.over++
	}
}

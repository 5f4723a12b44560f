package status

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/agent/podruntime"
)

// containers gives the statuses of one kind of container. Regular and ephemeral
// ones are sorted by name, init containers stay in their order.
func containers(in Input, specs []v1.Container, old []v1.ContainerStatus, init bool) []v1.ContainerStatus {
	if len(specs) == 0 {
		return nil
	}
	statuses := make([]v1.ContainerStatus, 0, len(specs))
	for i := range specs {
		before, known := podutil.GetContainerStatus(old, specs[i].Name)
		var was *v1.ContainerStatus
		if known {
			was = &before
		}
		statuses = append(statuses, one(in, &specs[i], was, init))
	}
	if !init {
		slices.SortFunc(statuses, func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	}
	return statuses
}

func one(in Input, c *v1.Container, was *v1.ContainerStatus, init bool) v1.ContainerStatus {
	instances := in.Runtime.Instances(c.Name)
	if in.Starting[c.Name] && len(instances) > 0 && instances[0].Phase != podruntime.Exited {
		// Not shown as running before its start is complete.
		instances = instances[1:]
	}
	var s v1.ContainerStatus
	if len(instances) == 0 {
		s = withoutInstance(in, c, was, init)
	} else {
		s = fromInstance(in, c, was, instances[0])
		if len(instances) > 1 {
			s.LastTerminationState = convert(in, instances[1]).State
		}
	}
	return waitingFor(in, c, s, init)
}

// withoutInstance is the status of a container the runtime knows nothing of.
func withoutInstance(in Input, c *v1.Container, was *v1.ContainerStatus, init bool) v1.ContainerStatus {
	s := v1.ContainerStatus{
		Name: c.Name, Image: c.Image, VolumeMounts: volumeMounts(c),
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: defaultReason(in.Pod)}},
	}
	if init && anyRegularCreated(in) && !podutil.IsRestartableInitContainer(c) && (was == nil || was.State.Terminated == nil) {
		// Regular containers exist, so this one has done its work.
		s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason:  "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
		}}
	}
	if was == nil {
		return s
	}
	if was.State.Terminated != nil {
		return *was.DeepCopy()
	}
	s.RestartCount = was.RestartCount
	s.LastTerminationState = *was.LastTerminationState.DeepCopy()
	if was.State.Running != nil && s.State.Waiting != nil && s.LastTerminationState.Terminated == nil {
		// It ran and is gone without a trace. Showing it as ended keeps the Pod
		// from going back to Pending.
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			Reason: reasonStatusUnknown, Message: messageVanishedBefore, ExitCode: exitKilled,
		}
		if in.Pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	}
	return s
}

func fromInstance(in Input, c *v1.Container, was *v1.ContainerStatus, instance podruntime.Container) v1.ContainerStatus {
	s := convert(in, instance)
	if s.State.Waiting != nil {
		s.State.Waiting.Reason = defaultReason(in.Pod)
	}
	s.VolumeMounts = volumeMounts(c)
	s.Resources = c.Resources.DeepCopy()
	s.AllocatedResources = c.Resources.Requests.DeepCopy()
	if was == nil {
		return s
	}
	s.RestartCount = max(s.RestartCount, was.RestartCount)
	switch {
	case was.ContainerID != s.ContainerID && was.State.Terminated != nil:
		s.LastTerminationState.Terminated = was.State.Terminated.DeepCopy()
	case was.LastTerminationState.Terminated != nil:
		s.LastTerminationState.Terminated = was.LastTerminationState.Terminated.DeepCopy()
	}
	if instance.Phase == podruntime.Unknown && was.State.Running != nil {
		s.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason: reasonStatusUnknown, Message: messageVanished, ExitCode: exitKilled,
		}}
		s.RestartCount = was.RestartCount + 1
	}
	return s
}

// convert is what an instance says of itself.
func convert(in Input, i podruntime.Container) v1.ContainerStatus {
	s := v1.ContainerStatus{
		Name:         i.Name,
		RestartCount: int32(i.Attempt),
		Image:        i.Image,
		ImageID:      i.ImageRef,
		ContainerID:  containerID(in.RuntimeName, i.ID),
		User:         i.User.DeepCopy(),
	}
	switch i.Phase {
	case podruntime.Running:
		s.State.Running = &v1.ContainerStateRunning{StartedAt: wholeOrZero(i.StartedAt)}
	case podruntime.Exited:
		s.State.Terminated = &v1.ContainerStateTerminated{
			ExitCode:    i.ExitCode,
			Reason:      i.Reason,
			Message:     i.Message,
			StartedAt:   wholeOrZero(i.StartedAt),
			FinishedAt:  wholeOrZero(i.FinishedAt),
			ContainerID: s.ContainerID,
		}
	case podruntime.Created, podruntime.Unknown:
		s.State.Waiting = &v1.ContainerStateWaiting{}
	}
	return s
}

// containerID is how the API writes a container's ID; bareID is its inverse.
func containerID(runtime, id string) string { return runtime + "://" + id }

func bareID(id string) string {
	_, bare, found := strings.Cut(id, "://")
	if !found {
		return id
	}
	return bare
}

// waitingFor shows a container that is about to be started again as waiting, with
// the reason it does not run yet. Without a reason it keeps its state: it will be
// started in a moment.
func waitingFor(in Input, c *v1.Container, s v1.ContainerStatus, init bool) v1.ContainerStatus {
	why, ok := in.Waiting[c.Name]
	if !ok || s.State.Running != nil {
		return s
	}
	if end := s.State.Terminated; end != nil {
		if init && end.ExitCode == 0 && !podutil.IsRestartableInitContainer(c) {
			return s
		}
		s.LastTerminationState = s.State
	}
	s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
	return s
}

func defaultReason(pod *v1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 {
		return ReasonPodInitializing
	}
	return ReasonContainerCreating
}

func anyRegularCreated(in Input) bool {
	return slices.ContainsFunc(in.Pod.Spec.Containers, func(c v1.Container) bool {
		latest := in.Runtime.Latest(c.Name)
		return latest != nil && latest.Phase != podruntime.Unknown
	})
}

func volumeMounts(c *v1.Container) []v1.VolumeMountStatus {
	var all []v1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		all = append(all, s)
	}
	return all
}

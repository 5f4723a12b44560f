package status

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// Generate is the Pod's status now. Nothing in in is changed. Times have whole
// seconds, as the API stores them, so that equal states give equal statuses.
func Generate(in Input) v1.PodStatus {
	pod := in.Pod
	s := v1.PodStatus{
		QOSClass:              qos.GetPodQOS(pod),
		ObservedGeneration:    podutil.CalculatePodStatusObservedGeneration(pod),
		ResourceClaimStatuses: in.Old.ResourceClaimStatuses,
		NominatedNodeName:     in.Old.NominatedNodeName,
	}
	if in.Verdict != nil && in.Runtime.Empty() && len(in.Old.ContainerStatuses) == 0 {
		// Refused before anything began: there is nothing to tell of containers.
		s.Phase, s.Reason, s.Message = v1.PodFailed, in.Verdict.Reason, in.Verdict.Message
		s.StartTime = startTime(in)
		s.Conditions = foreignConditions(pod.Status.Conditions)
		return s
	}
	s.InitContainerStatuses = containers(in, pod.Spec.InitContainers, in.Old.InitContainerStatuses, true)
	s.ContainerStatuses = containers(in, pod.Spec.Containers, in.Old.ContainerStatuses, false)
	s.EphemeralContainerStatuses = containers(in, ephemeral(pod), in.Old.EphemeralContainerStatuses, false)
	s.AllocatedResources = resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	s.Resources = &v1.ResourceRequirements{
		Requests: maps.Clone(s.AllocatedResources),
		Limits:   resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}),
	}
	s.StartTime = startTime(in)
	setPhase(in, &s)
	if in.Ended {
		end(in, &s)
	}
	setHealth(in, &s)
	s.Conditions = conditions(in, &s)
	setAddresses(in, &s)
	return s
}

// startTime is when this agent first saw the Pod.
func startTime(in Input) *metav1.Time {
	for _, known := range []*metav1.Time{in.Old.StartTime, in.Pod.Status.StartTime} {
		if !known.IsZero() {
			return known.DeepCopy()
		}
	}
	now := whole(in.Now)
	return &now
}

func setPhase(in Input, s *v1.PodStatus) {
	s.Phase = Phase(in.Pod, slices.Concat(s.ContainerStatuses, s.InitContainerStatuses), in.Ended, anyRegularStarted(in))
	// A Pod never leaves a final phase.
	for _, was := range []v1.PodPhase{in.Old.Phase, in.Pod.Status.Phase} {
		if podutil.IsPodPhaseTerminal(was) {
			s.Phase = was
		}
	}
	if in.Verdict != nil {
		s.Phase, s.Reason, s.Message = v1.PodFailed, in.Verdict.Reason, in.Verdict.Message
	}
	// A final phase is not told while something may still run: whoever waits for
	// it would take over what the Pod still holds.
	running := len(in.Runtime.Live()) > 0
	if podutil.IsPodPhaseTerminal(s.Phase) && running && !podutil.IsPodPhaseTerminal(in.Old.Phase) {
		s.Phase, s.Reason, s.Message = in.Old.Phase, in.Old.Reason, in.Old.Message
		if s.Phase == "" {
			s.Phase = v1.PodPending
		}
	}
	if s.Phase == in.Old.Phase {
		if s.Reason == "" {
			s.Reason = in.Old.Reason
		}
		if s.Message == "" {
			s.Message = in.Old.Message
		}
	}
}

// anyRegularStarted says whether a regular container ran in the active sandbox,
// which means that the Pod is initialized.
func anyRegularStarted(in Input) bool {
	for i := range in.Pod.Spec.Containers {
		c := in.Runtime.LatestActive(in.Pod.Spec.Containers[i].Name)
		if c != nil && !c.StartedAt.IsZero() {
			return true
		}
	}
	return false
}

func setAddresses(in Input, s *v1.PodStatus) {
	for _, ip := range in.Runtime.IPs() {
		s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
	}
	for _, ip := range in.HostIPs {
		s.HostIPs = append(s.HostIPs, v1.HostIP{IP: ip})
	}
	if len(s.HostIPs) > 0 {
		s.HostIP = s.HostIPs[0].IP
		if in.Pod.Spec.HostNetwork {
			s.PodIPs = nil
			for _, ip := range in.HostIPs {
				s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
			}
		}
	}
	if len(s.PodIPs) == 0 && in.Runtime.ActiveSandbox() == nil && (in.Ended || in.Pod.DeletionTimestamp != nil) {
		// An ended Pod goes on showing the address it had.
		s.PodIPs = slices.Clone(in.Old.PodIPs)
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

func ephemeral(pod *v1.Pod) []v1.Container {
	var all []v1.Container
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return all
}

func whole(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func wholeOrZero(t time.Time) metav1.Time {
	if t.IsZero() || t.UnixNano() == 0 {
		return metav1.Time{}
	}
	return whole(t)
}

// PhaseNow is the phase by the containers' states alone, before verdicts and
// earlier phases are weighed in.
func PhaseNow(in Input) v1.PodPhase {
	all := slices.Concat(
		containers(in, in.Pod.Spec.Containers, in.Old.ContainerStatuses, false),
		containers(in, in.Pod.Spec.InitContainers, in.Old.InitContainerStatuses, true))
	return Phase(in.Pod, all, in.Ended, anyRegularStarted(in))
}

package replicaset

import (
	"cmp"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core/helper"
)

// candidate is what a Pod's place in the order of deletion depends on.
type candidate struct {
	pod             *v1.Pod
	assigned        bool
	phase           int // Pending < Unknown < Running
	ready           bool
	available       bool  // ready for minReadySeconds, and routed
	cost            int32 // controller.kubernetes.io/pod-deletion-cost
	colocated       int   // active Pods of the same owner on its node, itself included
	readySince      time.Time
	restarts        int32
	sidecarRestarts int32
	created         time.Time
}

// firstToGo returns the n Pods to delete first, in order. The result does not
// depend on the order of active.
func firstToGo(o Observed, active []*v1.Pod, n int, now time.Time) []*v1.Pod {
	// The rules compare times on a logarithmic scale with the UID between equals,
	// which is not transitive; starting from the order of UIDs makes the outcome
	// one and the same for any input.
	pods := slices.SortedFunc(slices.Values(active), byUID)
	if n >= len(pods) {
		return pods
	}
	candidates := make([]candidate, len(pods))
	for i, pod := range pods {
		candidates[i] = asCandidate(pod, o.PodsOnNode)
		candidates[i].available = isAvailable(pod, o.ReplicaSet.Spec.MinReadySeconds, o.Unrouted, now)
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return goesBefore(a, b, now) })
	for i := range n {
		pods[i] = candidates[i].pod
	}
	return pods[:n]
}

func asCandidate(pod *v1.Pod, podsOnNode map[string]int) candidate {
	cost, _ := helper.GetDeletionCostFromPodAnnotations(pod.Annotations) // an unreadable cost is 0
	c := candidate{
		pod:        pod,
		assigned:   pod.Spec.NodeName != "",
		phase:      phaseOrder(pod.Status.Phase),
		ready:      podutil.IsPodReady(pod),
		cost:       cost,
		colocated:  podsOnNode[pod.Spec.NodeName],
		readySince: readySince(pod),
		created:    pod.CreationTimestamp.Time,
	}
	for _, s := range pod.Status.ContainerStatuses {
		c.restarts = max(c.restarts, s.RestartCount)
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if isSidecar(pod, s.Name) {
			c.sidecarRestarts = max(c.sidecarRestarts, s.RestartCount)
		}
	}
	return c
}

func phaseOrder(phase v1.PodPhase) int {
	switch phase {
	case v1.PodUnknown:
		return 1
	case v1.PodRunning:
		return 2
	default:
		return 0
	}
}

func isSidecar(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == name && c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
	})
}

// goesBefore is Kubernetes' ranking, negative if a goes first:
//
//  1. not on a node before on a node
//  2. Pending before Unknown before Running
//  3. not ready before ready
//  4. ready for less than minReadySeconds before available
//  5. lower pod-deletion-cost
//  6. more Pods of the same owner on its node
//  7. ready for less time (logarithmic)
//  8. more restarts, then more restarts of sidecars
//  9. younger (logarithmic)
//
// Rule 4 is not Kubernetes'. A Deployment that cuts a ReplicaSet counts on losing
// no available Pod while others remain; without it 5 or 6 would break its floor.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-a-replicaset
func goesBefore(a, b candidate, now time.Time) int {
	if order := cmp.Or(
		falseFirst(a.assigned, b.assigned),
		cmp.Compare(a.phase, b.phase),
		falseFirst(a.ready, b.ready),
		falseFirst(a.available, b.available),
		cmp.Compare(a.cost, b.cost),
		cmp.Compare(b.colocated, a.colocated),
	); order != 0 {
		return order
	}
	if a.ready && !a.readySince.Equal(b.readySince) {
		return younger(a, b, a.readySince, b.readySince, now)
	}
	if order := cmp.Or(
		cmp.Compare(b.restarts, a.restarts),
		cmp.Compare(b.sidecarRestarts, a.sidecarRestarts),
	); order != 0 {
		return order
	}
	if !a.created.Equal(b.created) {
		return younger(a, b, a.created, b.created, now)
	}
	return 0
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// younger compares two different times of a and b: the later first, on a scale
// of powers of two of their age, with the UID between equals, so that among Pods
// of about the same age the choice is as good as random. A zero time is first.
// Aged 5 s and 7 s: both 2^32 ns (4.3 s) or more and below 2^33 (8.6 s), so the UID decides;
// aged 5 s and 10 s: the one aged 5 s goes first.
func younger(a, b candidate, atA, atB, now time.Time) int {
	switch {
	case atA.IsZero():
		return -1
	case atB.IsZero():
		return 1
	}
	return cmp.Or(
		cmp.Compare(ageRank(now.Sub(atA)), ageRank(now.Sub(atB))),
		cmp.Compare(a.pod.UID, b.pod.UID),
	)
}

// ageRank is the whole part of log2 of an age in nanoseconds; -1 for no age.
func ageRank(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

package replicaset

import (
	"slices"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"
)

// Reasons of the condition ReplicaFailure, as in Kubernetes.
const (
	reasonFailedCreate = "FailedCreate"
	reasonFailedDelete = "FailedDelete"
)

// statusInterval is the least time between two status writes of one ReplicaSet
// that only report growth. 1,000 Pods starting within 10 s cause some 3,000
// events; at 50 ms they cost at most 200 writes, and twice that with the
// Deployment's.
const statusInterval = 50 * time.Millisecond

// nextStatus is the status that tells what was observed.
func nextStatus(o Observed, pods sorted, now time.Time) apps.ReplicaSetStatus {
	rs := o.ReplicaSet
	next := apps.ReplicaSetStatus{
		ObservedGeneration:  rs.Generation,
		Replicas:            int32(len(pods.active)),
		TerminatingReplicas: ptr.To(int32(len(pods.terminating))),
	}
	fullyLabelled := labels.Set(rs.Spec.Template.Labels).AsSelectorPreValidated()
	for _, pod := range pods.active {
		if fullyLabelled.Matches(labels.Set(pod.Labels)) {
			next.FullyLabeledReplicas++
		}
		if podutil.IsPodReady(pod) {
			next.ReadyReplicas++
		}
		if isAvailable(pod, rs.Spec.MinReadySeconds, o.Unrouted, now) {
			next.AvailableReplicas++
		}
	}
	next.Conditions = nextConditions(rs, len(pods.active), o.Failure, now)
	return next
}

// nextConditions sets ReplicaFailure while creates or deletes are refused. As in
// Kubernetes the first refusal's message stays until one succeeds.
func nextConditions(rs *apps.ReplicaSet, active int, failure *Failure, now time.Time) []apps.ReplicaSetCondition {
	failed := slices.ContainsFunc(rs.Status.Conditions, isReplicaFailure)
	switch {
	case failure != nil && !failed:
		return append(slices.Clone(rs.Status.Conditions), apps.ReplicaSetCondition{
			Type:               apps.ReplicaSetReplicaFailure,
			Status:             v1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
			Reason:             failureReason(active, desired(rs)),
			Message:            failure.Message,
		})
	case failure == nil && failed:
		return slices.DeleteFunc(slices.Clone(rs.Status.Conditions), isReplicaFailure)
	}
	return rs.Status.Conditions
}

func isReplicaFailure(c apps.ReplicaSetCondition) bool {
	return c.Type == apps.ReplicaSetReplicaFailure
}

func failureReason(active, want int) string {
	if active > want {
		return reasonFailedDelete
	}
	return reasonFailedCreate
}

// statusDue is the time from which next may be written over old. Growth waits
// until statusInterval after the last write; what a Deployment must not learn
// late does not wait: fewer ready or available Pods, conditions, a generation.
func statusDue(old, next apps.ReplicaSetStatus, written time.Time) time.Time {
	urgent := next.ObservedGeneration != old.ObservedGeneration ||
		next.ReadyReplicas < old.ReadyReplicas ||
		next.AvailableReplicas < old.AvailableReplicas ||
		!apiequality.Semantic.DeepEqual(old.Conditions, next.Conditions)
	if urgent || written.IsZero() {
		return time.Time{}
	}
	return written.Add(statusInterval)
}

// nextAvailable is when the next ready Pod will have been ready for
// minReadySeconds, or counts as routed; zero if none is waiting for that.
func nextAvailable(active []*v1.Pod, minReadySeconds int32, unrouted map[types.UID]bool, now time.Time) time.Time {
	var next time.Time
	if minReadySeconds <= 0 && len(unrouted) == 0 {
		return next
	}
	for _, pod := range active {
		if unrouted[pod.UID] {
			next = earliest(next, routedAt(pod, now))
		}
		since := readySince(pod)
		if since.IsZero() || hasBeenReady(pod, minReadySeconds, now) {
			continue
		}
		if at := since.Add(time.Duration(minReadySeconds) * time.Second); at.After(now) {
			next = earliest(next, at)
		}
	}
	return next
}

// clockSlack is by how much the clocks of two machines may differ at most.
const clockSlack = time.Minute

// hasBeenReady says whether the Pod has been ready for minReadySeconds. One that is
// ready since a time to come was so before the wall clock was set back: it does not
// become unavailable for that.
func hasBeenReady(pod *v1.Pod, minReadySeconds int32, now time.Time) bool {
	return podutil.IsPodAvailable(pod, minReadySeconds, metav1.NewTime(now)) || isAhead(readySince(pod), now)
}

// isAhead says whether a time that was written down cannot have been yet.
func isAhead(written, now time.Time) bool { return written.After(now.Add(clockSlack)) }

// readySince is when the Pod became ready; zero if it is not, or does not say.
func readySince(pod *v1.Pod) time.Time {
	if c := podutil.GetPodReadyCondition(pod.Status); c != nil && c.Status == v1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

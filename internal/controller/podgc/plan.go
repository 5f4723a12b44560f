package podgc

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// quarantine is how long a node must be missing before its Pods go.
	quarantine = 40 * time.Second
	// endedLimit is how many ended Pods may stay.
	endedLimit = 12500
)

// NodeState is what is known about the node that a key is about.
type NodeState int

const (
	// NodeThere: it exists and its Pods are its own.
	NodeThere NodeState = iota
	// NodeMissing: the cache has no such node.
	NodeMissing
	// NodeGone: a live read found none either.
	NodeGone
	// NodeOutOfService: not ready, and tainted node.kubernetes.io/out-of-service.
	NodeOutOfService
)

// NodeObserved is a node and the Pods bound to it.
type NodeObserved struct {
	State        NodeState
	MissingSince time.Time // for NodeMissing and NodeGone
	Pods         []*corev1.Pod
}

// Plan is which Pods end now, in this order, and when to look again.
type Plan struct {
	Actions []End
	Recheck time.Time
}

// End marks Pod with Status, unless that is nil, and then force deletes it.
type End struct {
	Pod    *corev1.Pod
	Status *corev1.PodStatus
	Why    string
}

// planNode decides about the Pods of one node.
func planNode(o NodeObserved, now time.Time) Plan {
	var p Plan
	switch o.State {
	case NodeThere:
	case NodeMissing:
		if len(o.Pods) > 0 {
			p.Recheck = o.MissingSince.Add(quarantine)
		}
	case NodeGone:
		for _, pod := range byAge(o.Pods) {
			p.end(pod, "node no longer exists", now, &corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
			})
		}
	case NodeOutOfService:
		for _, pod := range byAge(o.Pods) {
			if pod.DeletionTimestamp != nil {
				p.end(pod, "its node is out of service", now, nil)
			}
		}
	}
	return p
}

// planUnbound decides about one Pod (nil: gone).
func planUnbound(pod *corev1.Pod, now time.Time) Plan {
	var p Plan
	if pod != nil && pod.DeletionTimestamp != nil && pod.Spec.NodeName == "" {
		p.end(pod, "it is deleted and was never bound to a node", now, nil)
	}
	return p
}

// planEnded decides which of too many ended Pods go. Those on their way out do
// not count.
func planEnded(pods []*corev1.Pod, now time.Time) Plan {
	var p Plan
	ended := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return !hasEnded(pod) || pod.DeletionTimestamp != nil
	})
	excess := len(ended) - endedLimit
	if excess <= 0 {
		return p
	}
	for _, pod := range byAge(ended)[:excess] {
		p.end(pod, "more than 12500 Pods have ended", now, nil)
	}
	return p
}

func (p *Plan) end(pod *corev1.Pod, why string, now time.Time, condition *corev1.PodCondition) {
	if isDone(pod) {
		return
	}
	p.Actions = append(p.Actions, End{Pod: pod, Status: failedStatus(pod, condition, now), Why: why})
}

// isDone says that the Pod is marked and force deleted; a finalizer holds it.
func isDone(pod *corev1.Pod) bool {
	grace := pod.DeletionGracePeriodSeconds
	return hasEnded(pod) && pod.DeletionTimestamp != nil && grace != nil && *grace == 0
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// failedStatus is nil for a Pod that has ended by itself: it keeps its status.
func failedStatus(pod *corev1.Pod, condition *corev1.PodCondition, now time.Time) *corev1.PodStatus {
	if hasEnded(pod) {
		return nil
	}
	status := pod.Status.DeepCopy()
	status.Phase = corev1.PodFailed
	status.ObservedGeneration = pod.Generation
	if condition != nil {
		c := *condition
		c.ObservedGeneration = pod.Generation
		setCondition(status, c, now)
	}
	return status
}

func setCondition(status *corev1.PodStatus, c corev1.PodCondition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now)
	i := slices.IndexFunc(status.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type })
	if i < 0 {
		status.Conditions = append(status.Conditions, c)
		return
	}
	if status.Conditions[i].Status == c.Status {
		c.LastTransitionTime = status.Conditions[i].LastTransitionTime
	}
	status.Conditions[i] = c
}

// byAge sorts evicted Pods first, then by age and name, the oldest first.
func byAge(pods []*corev1.Pod) []*corev1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(
			cmp.Compare(evictedRank(a), evictedRank(b)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Namespace, b.Namespace),
		)
	})
}

func evictedRank(pod *corev1.Pod) int {
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted" {
		return 0
	}
	return 1
}

package tainteviction

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Observed is all that a plan for one Pod reads.
type Observed struct {
	Pod *v1.Pod
	// Taints are the NoExecute taints of the Pod's node.
	Taints []v1.Taint
	// Since is when the Pod was first seen under them; zero when it was not.
	Since time.Time
}

// Plan is what to do about one Pod: at most one of its first two fields is set.
type Plan struct {
	Evict *Evict
	// Cancel: a count that was running is over without eviction.
	Cancel *Cancel
	// Since is what is to be remembered; zero for nothing.
	Since   time.Time
	Recheck time.Time
}

// Evict marks the Pod and deletes it.
type Evict struct{ Why string }

// Cancel tells people that the Pod stays.
type Cancel struct{ Why string }

// MakePlan decides at the time now whether the Pod has to go.
func MakePlan(o Observed, now time.Time) Plan {
	if o.Pod.DeletionTimestamp != nil {
		return Plan{}
	}
	limit, isLimited := tolerated(o.Pod.Spec.Tolerations, o.Taints)
	if !isLimited {
		if o.Since.IsZero() {
			return Plan{}
		}
		return Plan{Cancel: &Cancel{Why: fmt.Sprintf("Cancelling deletion of Pod %s/%s", o.Pod.Namespace, o.Pod.Name)}}
	}
	since := o.Since
	if since.IsZero() {
		since = now
	}
	if due := since.Add(limit); due.After(now) {
		return Plan{Since: since, Recheck: due}
	}
	return Plan{Since: since, Evict: &Evict{Why: fmt.Sprintf("Marking for deletion Pod %s/%s", o.Pod.Namespace, o.Pod.Name)}}
}

// tolerated says for how long all taints together are tolerated, and false when
// that is for ever. One that is not tolerated at all makes it zero.
func tolerated(tolerations []v1.Toleration, taints []v1.Taint) (time.Duration, bool) {
	var limit time.Duration
	isLimited := false
	for i := range taints {
		seconds, ok := matching(tolerations, &taints[i])
		switch {
		case !ok:
			return 0, true
		case seconds == nil:
			continue
		}
		// Zero and less mean at once.
		if lasts := time.Duration(max(*seconds, 0)) * time.Second; !isLimited || lasts < limit {
			limit, isLimited = lasts, true
		}
	}
	return limit, isLimited
}

// matching is the tolerationSeconds of the first toleration for taint, as
// upstream: later ones do not lengthen it.
func matching(tolerations []v1.Toleration, taint *v1.Taint) (*int64, bool) {
	for i := range tolerations {
		if tolerations[i].ToleratesTaint(klog.Logger{}, taint, false) {
			return tolerations[i].TolerationSeconds, true
		}
	}
	return nil, false
}

func noExecute(node *v1.Node) []v1.Taint {
	var taints []v1.Taint
	for _, taint := range node.Spec.Taints {
		if taint.Effect == v1.TaintEffectNoExecute {
			taints = append(taints, taint)
		}
	}
	return taints
}

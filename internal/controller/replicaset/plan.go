package replicaset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// burst is the largest number of Pods one plan creates or deletes; the rest
// follows once the caches show these. Kubernetes' number.
const burst = 500

// Observed is what one plan is made from. Nothing in it is changed by plan.
type Observed struct {
	ReplicaSet *apps.ReplicaSet
	// Pods are those the ReplicaSet controls, in any state, and the Pods of its
	// namespace that have no controller. In any order.
	Pods []*v1.Pod
	// PodsOnNode counts, by node name, the active Pods of all ReplicaSets with
	// the same controller. Only read when Pods are too many.
	PodsOnNode map[string]int
	// Unrouted are ready Pods that requests do not reach yet.
	Unrouted map[types.UID]bool
	// StatusWritten is when this process last wrote the status; zero: never.
	StatusWritten time.Time
	// Failure is what stopped the actions of the plan before; nil: nothing did.
	Failure *Failure
}

// Failure is a refused create or delete of a Pod.
type Failure struct{ Message string }

// Plan is what to do, in order, and what to say.
type Plan struct {
	Actions []Action
	Status  *apps.ReplicaSetStatus // to write after the actions; nil: leave it
	Recheck time.Time              // look again then; zero: only on events
}

// Action is one of Adopt, Release, CreatePods and DeletePods.
type Action interface{ isAction() }

// Adopt makes the ReplicaSet the controller of a Pod that has none.
type Adopt struct {
	Pod *v1.Pod
	Why string
}

// Release takes the ReplicaSet's owner reference off a Pod.
type Release struct {
	Pod *v1.Pod
	Why string
}

// CreatePods creates Count Pods from the template, all alike.
type CreatePods struct {
	Count int
	Why   string
}

// DeletePods deletes the Pods, the ones to go first in front.
type DeletePods struct {
	Pods []*v1.Pod
	Why  string
}

func (Adopt) isAction()      {}
func (Release) isAction()    {}
func (CreatePods) isAction() {}
func (DeletePods) isAction() {}

// plan decides. The state table in doc.go is its contents.
func plan(o Observed, now time.Time) Plan {
	rs := o.ReplicaSet
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil || selector.Empty() {
		return Plan{} // validation admits neither; a selector that selects all would take over every bare Pod
	}
	pods := sortOut(rs, selector, o.Pods)
	if len(pods.claims) > 0 && o.Failure == nil {
		return Plan{Actions: pods.claims}
	}
	var p Plan
	if rs.DeletionTimestamp == nil && o.Failure == nil {
		p.Actions = planCount(o, pods.active, now)
	}
	next := nextStatus(o, pods, now)
	p.Recheck = nextAvailable(pods.active, rs.Spec.MinReadySeconds, o.Unrouted, now)
	if apiequality.Semantic.DeepEqual(rs.Status, next) {
		return p
	}
	if due := statusDue(rs.Status, next, o.StatusWritten); due.After(now) {
		p.Recheck = earliest(p.Recheck, due)
		return p
	}
	p.Status = &next
	return p
}

// sorted are the observed Pods by what they mean to the ReplicaSet.
type sorted struct {
	// claims settle whose the Pods are. While there are any nothing else is
	// planned: the count is only known when they hold.
	claims      []Action
	active      []*v1.Pod // its replicas
	terminating []*v1.Pod // were its replicas, and still hold resources
}

func sortOut(rs *apps.ReplicaSet, selector labels.Selector, pods []*v1.Pod) sorted {
	var s sorted
	mayClaim := rs.DeletionTimestamp == nil
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner != nil && owner.UID != rs.UID {
			continue
		}
		owned, matches := owner != nil, selector.Matches(labels.Set(pod.Labels))
		switch active := isActive(pod); {
		case owned != matches:
			if active && mayClaim {
				s.claims = append(s.claims, claim(pod, owned))
			}
		case !owned: // another's, or nobody's
		case active:
			s.active = append(s.active, pod)
		case !podutil.IsPodTerminal(pod):
			s.terminating = append(s.terminating, pod)
		}
	}
	slices.SortFunc(s.claims, func(a, b Action) int { return byUID(claimed(a), claimed(b)) })
	return s
}

// claim settles a Pod that is owned and does not match, or matches and is not owned.
func claim(pod *v1.Pod, owned bool) Action {
	if owned {
		return Release{Pod: pod, Why: "no longer matches the selector"}
	}
	return Adopt{Pod: pod, Why: "matches the selector and has no controller"}
}

// claimed is the Pod that a claim is about.
func claimed(claim Action) *v1.Pod {
	switch c := claim.(type) {
	case Adopt:
		return c.Pod
	case Release:
		return c.Pod
	default:
		panic("not a claim")
	}
}

// planCount closes the gap between the active Pods and the count asked for, at
// most burst Pods at a time. 3 wanted, 1 active: create 2; 3 wanted, 5 active:
// delete the 2 that rank first.
func planCount(o Observed, active []*v1.Pod, now time.Time) []Action {
	switch want, have := desired(o.ReplicaSet), len(active); {
	case have < want:
		return []Action{CreatePods{
			Count: min(want-have, burst),
			Why:   fmt.Sprintf("%d of %d Pods missing", want-have, want),
		}}
	case have > want:
		return []Action{DeletePods{
			Pods: firstToGo(o, active, min(have-want, burst), now),
			Why:  fmt.Sprintf("%d Pods where %d are wanted", have, want),
		}}
	}
	return nil
}

func desired(rs *apps.ReplicaSet) int {
	if rs.Spec.Replicas == nil {
		return 1 // the API's default
	}
	return int(*rs.Spec.Replicas)
}

// isActive says whether a Pod counts as a replica.
func isActive(pod *v1.Pod) bool {
	return pod.DeletionTimestamp == nil && !podutil.IsPodTerminal(pod)
}

func byUID(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) }

// earliest is the earlier of two times; zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

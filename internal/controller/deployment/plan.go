package deployment

import (
	"cmp"
	"slices"
	"time"

	apps "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"mend/internal/loop"
)

// Observed is what one plan is made from. Nothing in it is changed by plan.
type Observed struct {
	Deployment *apps.Deployment
	// ReplicaSets are those the Deployment controls and those of its namespace
	// that have no controller. In any order.
	ReplicaSets []*apps.ReplicaSet
	// RunningPods counts, by the UID of their ReplicaSet, Pods that have not
	// ended, terminating ones included. Only read under the strategy Recreate.
	RunningPods map[types.UID]int
	// NameHolder is the ReplicaSet that stood in the way when the plan before
	// wanted to create one of its name; nil: none did.
	NameHolder *apps.ReplicaSet
	// Failure is what refused the ReplicaSet that the plan before wanted to
	// create; nil: nothing did.
	Failure *Failure
	// Updated is when the Progressing condition was updated, by this process's clock.
	Updated loop.Anchor
}

// Failure is a refused creation of a ReplicaSet.
type Failure struct{ ReplicaSet, Message string }

// Plan is what to do, in order, and what to say.
type Plan struct {
	Actions []Action
	// Status is written after the actions; nil: leave it.
	Status *apps.DeploymentStatus
	// Revision is the Deployment's revision annotation, written with the status;
	// empty: leave it.
	Revision string
	Recheck  time.Time // look again then; zero: only on events
}

// Action is one of Adopt, Release, Create, Update, Delete and Notice.
type Action interface{ isAction() }

// Adopt makes the Deployment the controller of a ReplicaSet that has none.
type Adopt struct {
	ReplicaSet *apps.ReplicaSet
	Why        string
}

// Release takes the Deployment's owner reference off a ReplicaSet.
type Release struct {
	ReplicaSet *apps.ReplicaSet
	Why        string
}

// Create creates a ReplicaSet.
type Create struct {
	ReplicaSet *apps.ReplicaSet
	Why        string
}

// Update changes what a Deployment decides about a ReplicaSet.
type Update struct {
	ReplicaSet      *apps.ReplicaSet // as observed
	Replicas        int32
	MinReadySeconds int32
	Annotations     map[string]string // to set, beside those it has
	Why             string
}

// Delete deletes a ReplicaSet that no history needs.
type Delete struct {
	ReplicaSet *apps.ReplicaSet
	Why        string
}

// Notice only warns, by an event.
type Notice struct{ Reason, Why string }

func (Adopt) isAction()   {}
func (Release) isAction() {}
func (Create) isAction()  {}
func (Update) isAction()  {}
func (Delete) isAction()  {}
func (Notice) isAction()  {}

// plan decides. The state table in doc.go is its contents.
func plan(o Observed, now time.Time) Plan {
	d := o.Deployment
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || selector.Empty() {
		return planSelectingAll(d)
	}
	if claims := planClaims(d, selector, o.ReplicaSets); len(claims) > 0 {
		return Plan{Actions: claims}
	}
	r := newRollout(o, selector, now)
	switch {
	case d.DeletionTimestamp != nil:
		return r.finish(r.baseStatus())
	case o.NameHolder != nil && r.current == nil:
		return r.planCollision()
	case o.Failure != nil && r.current == nil:
		return r.planFailure(*o.Failure)
	}
	r.markPaused()
	r.markCurrent()
	switch {
	case d.Spec.Paused:
		r.scale()
		r.cleanUp()
		return r.finish(r.baseStatus())
	case r.isScaled():
		r.scale()
		return r.finish(r.scaledStatus())
	case d.Spec.Strategy.Type == apps.RecreateDeploymentStrategyType:
		r.recreate(o.RunningPods)
	default:
		r.roll()
	}
	if r.isComplete(d.Status) && !r.resizes() {
		r.cleanUp()
	}
	status := r.rolloutStatus()
	p := r.finish(status)
	p.Recheck = r.deadline(status)
	return p
}

// planSelectingAll answers a selector that would match everything. Validation
// does not admit one; a Deployment from elsewhere must not take over all.
func planSelectingAll(d *apps.Deployment) Plan {
	if d.Status.ObservedGeneration >= d.Generation {
		return Plan{}
	}
	status := d.Status.DeepCopy()
	status.ObservedGeneration = d.Generation
	return Plan{
		Actions: []Action{Notice{
			Reason: "SelectingAll",
			Why:    "This deployment is selecting all pods. A non-empty selector is required.",
		}},
		Status: status,
	}
}

// planClaims settles whose the ReplicaSets are. While there is any claim to
// settle nothing else is planned: the sizes only add up when the claims hold.
func planClaims(d *apps.Deployment, selector labels.Selector, sets []*apps.ReplicaSet) []Action {
	if d.DeletionTimestamp != nil {
		return nil
	}
	var adopt, release []*apps.ReplicaSet
	for _, rs := range sets {
		matches := selector.Matches(labels.Set(rs.Labels))
		switch owner := metav1.GetControllerOfNoCopy(rs); {
		case owner == nil && matches && rs.DeletionTimestamp == nil:
			adopt = append(adopt, rs)
		case owner != nil && owner.UID == d.UID && !matches:
			release = append(release, rs)
		}
	}
	slices.SortFunc(adopt, byAge)
	slices.SortFunc(release, byAge)
	var claims []Action
	for _, rs := range release {
		claims = append(claims, Release{ReplicaSet: rs, Why: "no longer matches the selector"})
	}
	for _, rs := range adopt {
		claims = append(claims, Adopt{ReplicaSet: rs, Why: "matches the selector and has no controller"})
	}
	return claims
}

// draft is a ReplicaSet as the plan will leave it.
type draft struct {
	rs          *apps.ReplicaSet // as observed, or as it will be created
	create      bool
	replicas    int32
	minReady    int32
	annotations map[string]string // to set; nil: none
}

func asDraft(rs *apps.ReplicaSet) *draft {
	return &draft{rs: rs, replicas: sizeOf(rs), minReady: rs.Spec.MinReadySeconds}
}

// available is how many available Pods can be counted on. A ReplicaSet whose size
// was just cut from 10 to 8 may still report 10; its unhealthy Pods go first, so of
// 8 wanted and 10 reported 8 remain, of 8 and 7 reported 7. If this plan gives it
// 12, still 8: what is added is not there yet.
func (f *draft) available() int32 {
	return min(f.replicas, sizeOf(f.rs), f.rs.Status.AvailableReplicas)
}

// footprint is how many Pods have to be expected. A ReplicaSet whose size was
// just cut from 10 to 8 may still have 10.
func (f *draft) footprint() int32 { return max(f.replicas, f.rs.Status.Replicas) }

func (f *draft) annotate(key, value string) {
	if f.annotations == nil {
		f.annotations = map[string]string{}
	}
	f.annotations[key] = value
}

// annotation is an annotation as the plan will leave it; empty if there is none.
func (f *draft) annotation(key string) string {
	if value, ok := f.annotations[key]; ok {
		return value
	}
	return f.rs.Annotations[key]
}

// rollout is a plan in the making.
type rollout struct {
	d       *apps.Deployment
	want    int32
	limits  limits
	current *draft   // the new ReplicaSet: the one with the present template; nil: none
	old     []*draft // all others, oldest first
	doomed  []*draft // old ones to delete
	// conditions are the Deployment's, with what this plan already has to say.
	conditions []apps.DeploymentCondition
	revision   string // for the Deployment; empty: leave it
	now        metav1.Time
	moment     time.Time // now, with the monotonic clock
	updated    loop.Anchor
}

func newRollout(o Observed, selector labels.Selector, now time.Time) *rollout {
	d := o.Deployment
	r := &rollout{
		d:          d,
		want:       wanted(d),
		conditions: d.Status.Conditions,
		// The API keeps whole seconds; a finer time would differ from itself when read back.
		now:     metav1.NewTime(now.Truncate(time.Second)),
		moment:  now,
		updated: o.Updated,
	}
	r.limits = resolveLimits(d.Spec.Strategy, r.want)
	for _, rs := range slices.SortedFunc(slices.Values(o.ReplicaSets), byAge) {
		switch {
		case !metav1.IsControlledBy(rs, d) || !selector.Matches(labels.Set(rs.Labels)):
		case r.current == nil && sameTemplate(&rs.Spec.Template, &d.Spec.Template):
			r.current = asDraft(rs) // if several have the template, the oldest
		default:
			r.old = append(r.old, asDraft(rs))
		}
	}
	return r
}

// all are the new ReplicaSet, if there is one, and the old ones, oldest first.
func (r *rollout) all() []*draft {
	if r.current == nil {
		return r.old
	}
	return append([]*draft{r.current}, r.old...)
}

// resizes says whether the plan changes any ReplicaSet's size.
func (r *rollout) resizes() bool {
	return slices.ContainsFunc(r.all(), func(f *draft) bool { return f.replicas != sizeOf(f.rs) })
}

// finish turns the drafts into actions: the new ReplicaSet, the old ones, the
// deletions. Each size respects floor and ceiling whatever becomes of the rest.
func (r *rollout) finish(status apps.DeploymentStatus) Plan {
	var p Plan
	for _, f := range r.all() {
		if action := f.action(); action != nil {
			p.Actions = append(p.Actions, action)
		}
	}
	for _, f := range r.doomed {
		p.Actions = append(p.Actions, Delete{ReplicaSet: f.rs, Why: "older than revisionHistoryLimit keeps"})
	}
	if r.revision != "" && r.revision != r.d.Annotations[revisionAnnotation] {
		p.Revision = r.revision
	}
	if p.Revision != "" || !apiequality.Semantic.DeepEqual(r.d.Status, status) {
		p.Status = &status
	}
	return p
}

func (f *draft) action() Action {
	size := sizeOf(f.rs)
	switch {
	case f.create:
		f.rs.Spec.Replicas = ptr.To(f.replicas)
		f.rs.Annotations = f.annotations
		return Create{ReplicaSet: f.rs, Why: createdWhy(f.rs.Name, f.replicas)}
	case f.replicas != size:
		return f.update(scaledWhy(f.rs.Name, size, f.replicas))
	case f.annotations != nil || f.minReady != f.rs.Spec.MinReadySeconds:
		return f.update("annotations or minReadySeconds differ from the Deployment's")
	}
	return nil
}

func (f *draft) update(why string) Update {
	return Update{
		ReplicaSet: f.rs, Replicas: f.replicas, MinReadySeconds: f.minReady, Annotations: f.annotations, Why: why,
	}
}

func wanted(d *apps.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

func sizeOf(rs *apps.ReplicaSet) int32 { return ptr.Deref(rs.Spec.Replicas, 1) }

// byAge orders by creation, then name: older first, as Kubernetes does.
func byAge(a, b *apps.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

package garbage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// unseenRecheck is how often an owner is read again that exists but that no
// watch shows: its end would go unnoticed otherwise.
const unseenRecheck = 30 * time.Second

// Object is the part of an object's metadata that decides about it.
type Object struct {
	Kind            Kind
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Owners          []metav1.OwnerReference
	Finalizers      []string
	Deleting        bool
}

// String is the object as people name it: "Pod web/web-1".
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind.Kind + " " + o.Name
	}
	return o.Kind.Kind + " " + o.Namespace + "/" + o.Name
}

func (o Object) hasFinalizer(name string) bool { return slices.Contains(o.Finalizers, name) }

func (o Object) isDeletingDependents() bool {
	return o.Deleting && o.hasFinalizer(metav1.FinalizerDeleteDependents)
}

func (o Object) isOrphaning() bool {
	return o.Deleting && o.hasFinalizer(metav1.FinalizerOrphanDependents)
}

// OwnerState is what is known about the object that a reference names.
type OwnerState int

const (
	// OwnerLives: it exists. A cache may say so, for this verdict harms nobody.
	OwnerLives OwnerState = iota
	// OwnerAbsent: a live read found no object, or one with another UID.
	OwnerAbsent
	// OwnerDeletingDependents: a live read found it waiting for its dependents.
	OwnerDeletingDependents
	// OwnerUnknown: its kind is not served, so nothing can be said.
	OwnerUnknown
	// OwnerOutOfReach: a namespaced kind named by a cluster-scoped object, which
	// says no namespace to look in. This will not change.
	OwnerOutOfReach
)

// Owner is one owner reference of the subject and what became of it.
type Owner struct {
	Ref   metav1.OwnerReference
	State OwnerState
	// Elsewhere says that the UID was seen in a namespace that the reference
	// cannot mean.
	Elsewhere bool
}

// Dependent is an object that names the subject as its owner.
type Dependent struct {
	Object
	Blocking bool // its reference has blockOwnerDeletion
	InCircle bool // it waits itself, directly or through others, for the subject
}

// Claim is one way in which dependents name an owner that no watch has shown.
type Claim struct {
	Namespace  string
	Ref        metav1.OwnerReference // coordinates only
	State      OwnerState
	Dependents []types.UID // sorted
}

// Observed is what one plan rests on. Object is nil for an owner that is only
// named; Claims then says by whom. Slices are sorted by UID, Owners in the order
// of the object.
type Observed struct {
	Object     *Object
	Owners     []Owner
	Dependents []Dependent
	Claims     []Claim
	// CompleteAt is zero when the graph holds every kind, else the time from
	// which it counts as complete whatever is missing.
	CompleteAt time.Time
}

// Plan is what to do now, in this order, and when to look again.
type Plan struct {
	Actions []Action
	Recheck time.Time
}

// Action is one of Delete, DropOwners, Unblock, Release, Examine, Report.
type Action interface{ action() }

// Delete deletes Target at the UID and resourceVersion it was judged at.
type Delete struct {
	Target Object
	Policy metav1.DeletionPropagation
	Why    string
}

// DropOwners removes the references Refs from Target. They are told apart by all
// coordinates: of two that have the same UID one may be right and one wrong.
type DropOwners struct {
	Target Object
	Refs   []metav1.OwnerReference
	Why    string
}

// Unblock sets blockOwnerDeletion to false in Target's references to Owner.
type Unblock struct {
	Target Object
	Owner  types.UID
	Why    string
}

// Release removes Finalizer from Target.
type Release struct {
	Target    Object
	Finalizer string
	Why       string
}

// Examine puts another object in line.
type Examine struct{ UID types.UID }

// Report sends a warning event about Target.
type Report struct {
	Target          Object
	Reason, Message string
}

func (Delete) action()     {}
func (DropOwners) action() {}
func (Unblock) action()    {}
func (Release) action()    {}
func (Examine) action()    {}
func (Report) action()     {}

func plan(o Observed, now time.Time) Plan {
	switch {
	case o.Object == nil:
		return planUnseen(o, now)
	case o.Object.isOrphaning():
		return planOrphan(o)
	case o.Object.isDeletingDependents():
		return planForeground(o)
	case o.Object.Deleting, len(o.Owners) == 0:
		return Plan{}
	default:
		return planOwned(o, now)
	}
}

// planUnseen condemns nobody: it puts those in line whose owner turned out to be
// absent, each to be judged by all of its owners.
func planUnseen(o Observed, now time.Time) Plan {
	var p Plan
	for _, claim := range o.Claims {
		switch claim.State {
		case OwnerAbsent, OwnerDeletingDependents:
			for _, uid := range claim.Dependents {
				p.Actions = append(p.Actions, Examine{UID: uid})
			}
		case OwnerLives, OwnerUnknown, OwnerOutOfReach:
		}
		if claim.State != OwnerAbsent && claim.State != OwnerOutOfReach {
			p.Recheck = now.Add(unseenRecheck)
		}
	}
	return p
}

// planOrphan lets go of every dependent before the owner may vanish: one that
// still named it would be collected as garbage.
func planOrphan(o Observed) Plan {
	if !o.CompleteAt.IsZero() {
		return Plan{Recheck: o.CompleteAt}
	}
	var p Plan
	for _, dep := range o.Dependents {
		p.Actions = append(p.Actions, DropOwners{
			Target: dep.Object, Refs: referencesTo(o.Object.UID, dep.Owners),
			Why: fmt.Sprintf("owner %s is deleted and orphans its dependents", o.Object),
		})
	}
	p.Actions = append(p.Actions, Release{
		Target: *o.Object, Finalizer: metav1.FinalizerOrphanDependents,
		Why: fmt.Sprintf("no dependent names it any more (%d did)", len(o.Dependents)),
	})
	return p
}

func planForeground(o Observed) Plan {
	var p Plan
	isBlocked := false
	for _, dep := range o.Dependents {
		if !dep.Blocking {
			continue
		}
		isBlocked = true
		switch {
		case dep.InCircle:
			p.Actions = append(p.Actions, Unblock{
				Target: dep.Object, Owner: o.Object.UID,
				Why: fmt.Sprintf("it and its owner %s wait for each other", o.Object),
			})
		case !dep.Deleting:
			p.Actions = append(p.Actions, Examine{UID: dep.UID})
		}
	}
	switch {
	case isBlocked:
	case !o.CompleteAt.IsZero():
		p.Recheck = o.CompleteAt
	default:
		p.Actions = append(p.Actions, Release{
			Target: *o.Object, Finalizer: metav1.FinalizerDeleteDependents,
			Why: "no dependent blocks its deletion any more",
		})
	}
	return p
}

// planOwned decides about an object that nobody is deleting yet.
func planOwned(o Observed, now time.Time) Plan {
	var p Plan
	for _, owner := range o.Owners {
		if owner.Elsewhere {
			p.Actions = append(p.Actions, reportElsewhere(*o.Object, owner.Ref))
		}
	}
	by := map[OwnerState][]metav1.OwnerReference{}
	for _, owner := range o.Owners {
		by[owner.State] = append(by[owner.State], owner.Ref)
	}
	absent, waiting := by[OwnerAbsent], by[OwnerDeletingDependents]
	keepers := slices.Concat(by[OwnerLives], by[OwnerUnknown], by[OwnerOutOfReach])
	if len(by[OwnerUnknown]) > 0 {
		p.Recheck = now.Add(unseenRecheck)
	}
	switch {
	case len(keepers) > 0:
		// The waiting owners go as well: they would wait for ever for an object
		// that another owner keeps, or may keep.
		if gone := slices.Concat(absent, waiting); len(gone) > 0 {
			p.Actions = append(p.Actions, DropOwners{
				Target: *o.Object, Refs: gone,
				Why: fmt.Sprintf("kept by %s; gone: %s", names(keepers), names(gone)),
			})
		}
	case len(waiting) > 0 && len(o.Dependents) > 0:
		p.Actions = append(p.Actions, Delete{
			Target: *o.Object, Policy: metav1.DeletePropagationForeground,
			Why: fmt.Sprintf("owner %s is deleted in the foreground", names(waiting)),
		})
	case len(waiting) > 0 && !o.CompleteAt.IsZero():
		p.Recheck = o.CompleteAt // dependents may still turn up
	default:
		p.Actions = append(p.Actions, Delete{
			Target: *o.Object, Policy: policyAskedFor(*o.Object),
			Why: fmt.Sprintf("no owner is left: %s", names(slices.Concat(absent, waiting))),
		})
	}
	return p
}

// policyAskedFor honours a finalizer that someone put on the object beforehand.
func policyAskedFor(o Object) metav1.DeletionPropagation {
	switch {
	case o.hasFinalizer(metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case o.hasFinalizer(metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	default:
		return metav1.DeletePropagationBackground
	}
}

func reportElsewhere(o Object, ref metav1.OwnerReference) Report {
	return Report{
		Target: o, Reason: "OwnerRefInvalidNamespace",
		Message: fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			ref.APIVersion, ref.Kind, o.Namespace, ref.Name, ref.UID, o.Namespace),
	}
}

func referencesTo(uid types.UID, refs []metav1.OwnerReference) []metav1.OwnerReference {
	var all []metav1.OwnerReference
	for _, ref := range refs {
		if ref.UID == uid {
			all = append(all, ref)
		}
	}
	return all
}

func names(refs []metav1.OwnerReference) string {
	var all []string
	for _, ref := range refs {
		all = append(all, ref.Kind+" "+ref.Name)
	}
	return strings.Join(all, ", ")
}

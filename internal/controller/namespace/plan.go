package namespace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"mend/internal/loop"
)

const (
	// settleTime is how long after its deletion a namespace may still gain
	// objects whose creation was admitted before. Upstream waits 5 s, because of
	// other API servers that learn of the deletion later; here there is one, and
	// admission learns of it first. deletionTimestamp has whole seconds, so this
	// is between one and two.
	settleTime = 2 * time.Second
	// slowest is the longest time between two looks at what does not move.
	slowest = 15 * time.Second
)

var podsResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// Item is one object in the namespace.
type Item struct {
	Name       string
	Deleting   bool
	Finalizers []string
}

// Content is what one kind has in the namespace.
type Content struct {
	Resource schema.GroupVersionResource
	// Listed is false for a kind that cannot be listed; Items says nothing then.
	Listed bool
	// InBulk says that the kind can be deleted as a collection.
	InBulk bool
	Items  []Item // by name
	// Grace is the longest grace period of those that still run (Pods).
	Grace time.Duration
	// Attempts counts the earlier deletions, as far as this process remembers.
	Attempts int
	// Failure is why the kind could not be listed now, or deleted the last time.
	Failure string
}

// Observed is a namespace and what is in it.
type Observed struct {
	Namespace *corev1.Namespace // nil: gone
	// Deleted is the time of its deletion by a clock that does not jump.
	Deleted loop.Anchor
	// Contents begins with the Pods. While there are any, it ends with them: the
	// rest is not looked at yet.
	Contents []Content
	// DiscoveryFailure and VersionFailure are condition messages, empty if all is
	// well.
	DiscoveryFailure, VersionFailure string
}

// Plan is what to do now: Actions, then the status, then Finalize.
type Plan struct {
	Actions []Action
	Status  *corev1.NamespaceStatus // nil: as it is
	// Finalize, if not nil, is what spec.finalizers become.
	Finalize *[]corev1.FinalizerName
	Recheck  time.Time
}

// Action deletes what one kind has in the namespace: all of it, or Names.
type Action struct {
	Resource schema.GroupVersionResource
	InBulk   bool
	Names    []string
	Why      string
}

func plan(o Observed, now time.Time) Plan {
	n := o.Namespace
	if n == nil || n.DeletionTimestamp == nil || len(n.Spec.Finalizers) == 0 {
		return Plan{}
	}
	var p Plan
	for _, c := range o.Contents {
		if action, ok := planDeletion(c); ok {
			p.Actions = append(p.Actions, action)
		}
	}
	deleted := o.Deleted.Of(n.DeletionTimestamp.Time)
	age := max(0, now.Sub(deleted)) // below 0 it would be looked at without a pause
	failures := failuresOf(o, age)
	p.Status = planStatus(o, failures, len(p.Actions) > 0, now)
	switch {
	case len(p.Actions) > 0:
		p.Recheck = now.Add(min(50*time.Millisecond+age/8, slowest))
	case isEmpty(o) && len(failures) == 0 && o.DiscoveryFailure == "" && o.VersionFailure == "":
		if age < settleTime {
			p.Recheck = deleted.Add(settleTime)
		} else {
			p.Finalize = finalizersLeft(n)
		}
		if isLastFinalizer(n) {
			p.Status = nil // it vanishes with this write; nobody could read the other
		}
	default:
		p.Recheck = now.Add(min(time.Second+age/4, slowest))
	}
	return p
}

// planDeletion deletes what nobody has deleted yet. A kind that cannot be listed
// is deleted blindly, once.
func planDeletion(c Content) (Action, bool) {
	a := Action{Resource: c.Resource, InBulk: c.InBulk, Why: "its namespace is being deleted"}
	if !c.Listed {
		return a, c.InBulk && (c.Attempts == 0 || c.Failure != "")
	}
	for _, item := range c.Items {
		if !item.Deleting {
			a.Names = append(a.Names, item.Name)
		}
	}
	return a, len(a.Names) > 0
}

func isEmpty(o Observed) bool {
	return !slices.ContainsFunc(o.Contents, func(c Content) bool { return len(c.Items) > 0 })
}

func isLastFinalizer(n *corev1.Namespace) bool {
	return len(n.Finalizers) == 0 && len(*finalizersLeft(n)) == 0
}

func finalizersLeft(n *corev1.Namespace) *[]corev1.FinalizerName {
	left := []corev1.FinalizerName{}
	for _, f := range n.Spec.Finalizers {
		if f != corev1.FinalizerKubernetes {
			left = append(left, f)
		}
	}
	return &left
}

// failuresOf are the messages of upstream's errors, sorted.
func failuresOf(o Observed, age time.Duration) []string {
	var failures []string
	for _, c := range o.Contents {
		text := c.Failure
		if text == "" && isUnexpected(c, age) {
			text = fmt.Sprintf("unexpected items still remain in namespace: %s for gvr: %v", o.Namespace.Name, c.Resource)
		}
		if text != "" && c.Resource == podsResource {
			text = fmt.Sprintf("failed to delete pods for namespace: %s, err: %s", o.Namespace.Name, text)
		}
		if text != "" {
			failures = append(failures, text)
		}
	}
	slices.Sort(failures)
	return failures
}

// isUnexpected: deleted, held by no finalizer and by no grace, and still there.
// What does not even show as deleted gets a second try first.
func isUnexpected(c Content, age time.Duration) bool {
	if len(c.Items) == 0 || age < c.Grace {
		return false
	}
	return !slices.ContainsFunc(c.Items, func(i Item) bool {
		return len(i.Finalizers) > 0 || !i.Deleting && c.Attempts < 2
	})
}

// planStatus gives the phase and the conditions, or nil when nothing changes.
// While deletions are still to be done, what "remains" would be gone a moment
// later; so conditions are told by passes that have nothing to delete, and by
// those that failed.
func planStatus(o Observed, failures []string, deletes bool, now time.Time) *corev1.NamespaceStatus {
	status := o.Namespace.Status.DeepCopy()
	changed := status.Phase != corev1.NamespaceTerminating
	status.Phase = corev1.NamespaceTerminating
	if !deletes || len(failures) > 0 {
		for _, c := range conditions(o, failures) {
			changed = setCondition(status, c, now) || changed
		}
	}
	if !changed {
		return nil
	}
	return status
}

// conditions are the five that upstream keeps, in its order.
func conditions(o Observed, failures []string) []corev1.NamespaceCondition {
	resources, finalizers := remaining(o.Contents)
	var failure string
	if len(failures) > 0 {
		failure = fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(failures), strings.Join(failures, ", "))
	}
	return []corev1.NamespaceCondition{
		condition(corev1.NamespaceDeletionDiscoveryFailure, o.DiscoveryFailure, "DiscoveryFailed",
			"ResourcesDiscovered", "All resources successfully discovered"),
		condition(corev1.NamespaceDeletionGVParsingFailure, o.VersionFailure, "GroupVersionParsingFailed",
			"ParsedGroupVersions", "All legacy kube types successfully parsed"),
		condition(corev1.NamespaceDeletionContentFailure, failure, "ContentDeletionFailed",
			"ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		condition(corev1.NamespaceContentRemaining, prefixed("Some resources are remaining: ", resources), "SomeResourcesRemain",
			"ContentRemoved", "All content successfully removed"),
		condition(corev1.NamespaceFinalizersRemaining, prefixed("Some content in the namespace has finalizers remaining: ", finalizers), "SomeFinalizersRemain",
			"ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
}

// condition is True with trouble as its message, or False with the good one.
func condition(kind corev1.NamespaceConditionType, trouble, troubleReason, goodReason, good string) corev1.NamespaceCondition {
	if trouble != "" {
		return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionTrue, Reason: troubleReason, Message: trouble}
	}
	return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: goodReason, Message: good}
}

// remaining says what is left, by resource and by finalizer: "pods. has 1
// resource instances", "example.com/f in 1 resource instances".
func remaining(contents []Content) (resources, finalizers []string) {
	byFinalizer := map[string]int{}
	for _, c := range contents {
		if len(c.Items) > 0 {
			resources = append(resources, fmt.Sprintf("%s.%s has %d resource instances", c.Resource.Resource, c.Resource.Group, len(c.Items)))
		}
		for _, item := range c.Items {
			for _, f := range item.Finalizers {
				byFinalizer[f]++
			}
		}
	}
	for f, n := range byFinalizer {
		finalizers = append(finalizers, fmt.Sprintf("%s in %d resource instances", f, n))
	}
	slices.Sort(resources)
	slices.Sort(finalizers)
	return resources, finalizers
}

func prefixed(prefix string, list []string) string {
	if len(list) == 0 {
		return ""
	}
	return prefix + strings.Join(list, ", ")
}

// setCondition says whether it changed anything. The time is that of the last
// change of the status itself, not of the message.
func setCondition(status *corev1.NamespaceStatus, c corev1.NamespaceCondition, now time.Time) bool {
	c.LastTransitionTime = metav1.NewTime(now)
	i := slices.IndexFunc(status.Conditions, func(old corev1.NamespaceCondition) bool { return old.Type == c.Type })
	if i < 0 {
		status.Conditions = append(status.Conditions, c)
		return true
	}
	old := status.Conditions[i]
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	status.Conditions[i] = c
	return old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message
}

// podsFirst sorts the kinds into the order in which they are deleted.
func podsFirst(a, b Content) int {
	if a.Resource == podsResource || b.Resource == podsResource {
		return cmp.Compare(rank(a.Resource), rank(b.Resource))
	}
	return cmp.Compare(a.Resource.String(), b.Resource.String())
}

func rank(r schema.GroupVersionResource) int {
	if r == podsResource {
		return 0
	}
	return 1
}

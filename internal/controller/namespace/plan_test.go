package namespace

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"pgregory.net/rapid"

	"mend/internal/loop"
)

var (
	now        = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)

// deletedFor is namespace shop, deleted age ago and marked Terminating.
func deletedFor(age time.Duration, change ...func(*corev1.Namespace)) *corev1.Namespace {
	n := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", DeletionTimestamp: &metav1.Time{Time: now.Add(-age)}},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func content(resource schema.GroupVersionResource, items ...Item) Content {
	return Content{Resource: resource, Listed: true, InBulk: true, Items: items}
}

func (c Content) but(change func(*Content)) Content {
	change(&c)
	return c
}

var (
	there   = Item{Name: "there"}
	leaving = Item{Name: "leaving", Deleting: true}
	held    = Item{Name: "held", Deleting: true, Finalizers: []string{"example.com/f"}}
)

// told is the status with all five conditions; trouble replaces some of them.
func told(at time.Time, trouble ...corev1.NamespaceCondition) *corev1.NamespaceStatus {
	status := &corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating, Conditions: []corev1.NamespaceCondition{
		{Type: "NamespaceDeletionDiscoveryFailure", Status: "False", Reason: "ResourcesDiscovered", Message: "All resources successfully discovered"},
		{Type: "NamespaceDeletionGroupVersionParsingFailure", Status: "False", Reason: "ParsedGroupVersions", Message: "All legacy kube types successfully parsed"},
		{Type: "NamespaceDeletionContentFailure", Status: "False", Reason: "ContentDeleted", Message: "All content successfully deleted, may be waiting on finalization"},
		{Type: "NamespaceContentRemaining", Status: "False", Reason: "ContentRemoved", Message: "All content successfully removed"},
		{Type: "NamespaceFinalizersRemaining", Status: "False", Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished"},
	}}
	for i := range status.Conditions {
		for _, c := range trouble {
			if c.Type == status.Conditions[i].Type {
				c.Status = "True"
				status.Conditions[i] = c
			}
		}
		status.Conditions[i].LastTransitionTime = metav1.NewTime(at)
	}
	return status
}

func remain(message string) corev1.NamespaceCondition {
	return corev1.NamespaceCondition{Type: "NamespaceContentRemaining", Reason: "SomeResourcesRemain", Message: message}
}

func held1(message string) corev1.NamespaceCondition {
	return corev1.NamespaceCondition{Type: "NamespaceFinalizersRemaining", Reason: "SomeFinalizersRemain", Message: message}
}

func failure(message string) corev1.NamespaceCondition {
	return corev1.NamespaceCondition{Type: "NamespaceDeletionContentFailure", Reason: "ContentDeletionFailed", Message: message}
}

const why = "its namespace is being deleted"

func grace(d time.Duration) func(*Content) { return func(c *Content) { c.Grace = d } }

var planTests = []struct {
	name string
	in   Observed
	want Plan
}{
	{"a namespace that is not deleted is left alone", Observed{Namespace: deletedFor(0, func(n *corev1.Namespace) { n.DeletionTimestamp = nil })}, Plan{}},
	{"one that is gone too", Observed{}, Plan{}},
	{"one without finalizers is not ours any more",
		Observed{Namespace: deletedFor(time.Second, func(n *corev1.Namespace) { n.Spec.Finalizers = nil })}, Plan{}},
	{"the phase becomes Terminating at once, with the first deletions",
		Observed{Namespace: deletedFor(0, func(n *corev1.Namespace) { n.Status.Phase = corev1.NamespaceActive }), Contents: []Content{content(configMaps, there)}},
		Plan{
			Actions: []Action{{Resource: configMaps, InBulk: true, Names: []string{"there"}, Why: why}},
			Status:  &corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
			Recheck: now.Add(50 * time.Millisecond),
		}},
	{"what is deleted already is not deleted again", Observed{Namespace: deletedFor(8 * time.Second), Contents: []Content{content(configMaps, held, there), content(widgets, held)}},
		Plan{Actions: []Action{{Resource: configMaps, InBulk: true, Names: []string{"there"}, Why: why}}, Recheck: now.Add(1050 * time.Millisecond)}},
	{"Pods in their grace are named and waited for", Observed{Namespace: deletedFor(4 * time.Second), Contents: []Content{content(podsResource, leaving).but(grace(30 * time.Second))}},
		Plan{Status: told(now, remain("Some resources are remaining: pods. has 1 resource instances")), Recheck: now.Add(2 * time.Second)}},
	{"Pods past their grace are a failure", Observed{Namespace: deletedFor(40 * time.Second), Contents: []Content{content(podsResource, leaving, leaving).but(grace(30 * time.Second))}},
		Plan{Status: told(now,
			failure("Failed to delete all resource types, 1 remaining: failed to delete pods for namespace: shop, err: unexpected items still remain in namespace: shop for gvr: /v1, Resource=pods"),
			remain("Some resources are remaining: pods. has 2 resource instances")), Recheck: now.Add(11 * time.Second)}},
	{"what finalizers hold is named, with the finalizers", Observed{Namespace: deletedFor(100 * time.Second), Contents: []Content{content(widgets, held, held), content(configMaps, held)}},
		Plan{Status: told(now,
			remain("Some resources are remaining: configmaps. has 1 resource instances, widgets.example.com has 2 resource instances"),
			held1("Some content in the namespace has finalizers remaining: example.com/f in 3 resource instances")), Recheck: now.Add(15 * time.Second)}},
	{"nothing is told twice", Observed{Namespace: deletedFor(4*time.Second, func(n *corev1.Namespace) {
		n.Status = *told(now.Add(-time.Hour), remain("Some resources are remaining: pods. has 1 resource instances"))
	}), Contents: []Content{content(podsResource, leaving).but(grace(30 * time.Second))}}, Plan{Recheck: now.Add(2 * time.Second)}},
	{"a kind that cannot be deleted in bulk goes one by one",
		Observed{Namespace: deletedFor(0), Contents: []Content{content(widgets, there, held).but(func(c *Content) { c.InBulk = false })}},
		Plan{Actions: []Action{{Resource: widgets, Names: []string{"there"}, Why: why}}, Recheck: now.Add(50 * time.Millisecond)}},
	{"a kind that cannot be listed is deleted blindly, once",
		Observed{Namespace: deletedFor(0), Contents: []Content{
			{Resource: widgets, InBulk: true}, {Resource: configMaps, InBulk: true, Attempts: 1}}},
		Plan{Actions: []Action{{Resource: widgets, InBulk: true, Why: why}}, Recheck: now.Add(50 * time.Millisecond)}},
	{"a deletion that failed is told and tried again",
		Observed{Namespace: deletedFor(8 * time.Second), Contents: []Content{content(widgets, there).but(func(c *Content) { c.Failure, c.Attempts = "webhook says no", 1 })}},
		Plan{
			Actions: []Action{{Resource: widgets, InBulk: true, Names: []string{"there"}, Why: why}},
			Status: told(now, failure("Failed to delete all resource types, 1 remaining: webhook says no"),
				remain("Some resources are remaining: widgets.example.com has 1 resource instances")),
			Recheck: now.Add(1050 * time.Millisecond),
		}},
	{"a kind that does not answer keeps the namespace",
		Observed{Namespace: deletedFor(4 * time.Second), Contents: []Content{content(widgets).but(func(c *Content) { c.Failure = "503" })}},
		Plan{Status: told(now, failure("Failed to delete all resource types, 1 remaining: 503")), Recheck: now.Add(2 * time.Second)}},
	{"a discovery that fails keeps the namespace", Observed{Namespace: deletedFor(4 * time.Second), DiscoveryFailure: "Discovery failed for some groups, 1 failing: x"},
		Plan{Status: told(now, corev1.NamespaceCondition{Type: "NamespaceDeletionDiscoveryFailure", Reason: "DiscoveryFailed", Message: "Discovery failed for some groups, 1 failing: x"}),
			Recheck: now.Add(2 * time.Second)}},
	{"a version that cannot be read keeps the namespace", Observed{Namespace: deletedFor(4 * time.Second), VersionFailure: "a/b/c"},
		Plan{Status: told(now, corev1.NamespaceCondition{Type: "NamespaceDeletionGroupVersionParsingFailure", Reason: "GroupVersionParsingFailed", Message: "a/b/c"}),
			Recheck: now.Add(2 * time.Second)}},
	{"an empty one waits for creates admitted before", Observed{Namespace: deletedFor(500 * time.Millisecond), Contents: []Content{content(configMaps)}},
		Plan{Recheck: now.Add(1500 * time.Millisecond)}},
	{"an empty one goes", Observed{Namespace: deletedFor(2 * time.Second), Contents: []Content{content(configMaps)}}, Plan{Finalize: &[]corev1.FinalizerName{}}},
	{"an empty one with another's finalizer is told so, and loses ours",
		Observed{Namespace: deletedFor(2*time.Second, func(n *corev1.Namespace) { n.Spec.Finalizers = []corev1.FinalizerName{"example.com/f", "kubernetes"} })},
		Plan{Status: told(now), Finalize: &[]corev1.FinalizerName{"example.com/f"}}},
}

func TestPlan(t *testing.T) {
	for _, tt := range planTests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.in.Namespace.DeepCopy()
			if diff := cmp.Diff(tt.want, plan(tt.in, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.in.Namespace); diff != "" {
				t.Errorf("the plan changed its input:\n%s", diff)
			}
		})
	}
}

func TestAConditionKeepsTheTimeAtWhichItsStatusChanged(t *testing.T) {
	earlier := now.Add(-time.Hour)
	n := deletedFor(4*time.Second, func(n *corev1.Namespace) {
		n.Status = *told(earlier, remain("Some resources are remaining: pods. has 9 resource instances"))
	})
	got := plan(Observed{Namespace: n, Contents: []Content{content(configMaps, held)}}, now).Status
	want := told(earlier, remain("Some resources are remaining: configmaps. has 1 resource instances"),
		held1("Some content in the namespace has finalizers remaining: example.com/f in 1 resource instances"))
	want.Conditions[4].LastTransitionTime = metav1.NewTime(now)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestItGoesOnlyWhenNothingIsLeft holds for any observation.
func TestItGoesOnlyWhenNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Observed{Namespace: deletedFor(time.Duration(rapid.IntRange(0, 100).Draw(t, "age")) * time.Second)}
		isEmpty, isFailing := true, false
		for i, resource := range []schema.GroupVersionResource{podsResource, configMaps, widgets} {
			items := rapid.SliceOfN(rapid.SampledFrom([]Item{there, leaving, held}), 0, 2).Draw(t, fmt.Sprint("items", i))
			c := content(resource, items...)
			if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
				c.Failure, isFailing = "no", true
			}
			isEmpty = isEmpty && len(items) == 0
			o.Contents = append(o.Contents, c)
		}
		p := plan(o, now)
		if p.Finalize != nil && (!isEmpty || isFailing) {
			t.Fatalf("goes with %+v", o.Contents)
		}
		if p.Finalize == nil && p.Recheck.IsZero() {
			t.Fatal("forgets to look again")
		}
		for _, a := range p.Actions {
			if !slices.Contains(a.Names, "there") {
				t.Fatalf("deletes %+v again", a)
			}
		}
		slices.Reverse(o.Contents)
		if diff := cmp.Diff(p.Status, plan(o, now).Status); diff != "" {
			t.Fatalf("order matters:\n%s", diff)
		}
	})
}

func TestDeletableKindsBeginWithPods(t *testing.T) {
	all, some := metav1.Verbs{"delete", "deletecollection", "list"}, metav1.Verbs{"delete"}
	got, err := deletable([]*metav1.APIResourceList{
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "widgets", Verbs: some}, {Name: "reviews", Verbs: metav1.Verbs{"create"}}}},
		{GroupVersion: "a/b/c", APIResources: []metav1.APIResource{{Name: "bad", Verbs: all}}},
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "configmaps", Verbs: all}, {Name: "pods", Verbs: all}}},
	})
	want := []Content{content(podsResource), content(configMaps), {Resource: widgets}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	if err == nil {
		t.Error("a version that cannot be read goes unnoticed")
	}
}

func TestDiscoveryFailureHasUpstreamsWords(t *testing.T) {
	groups := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "example.com", Version: "v1"}: errors.New("away")}}
	for err, want := range map[error]string{
		nil:                "",
		errors.New("away"): "away",
		error(groups):      "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: example.com/v1: away",
	} {
		if got := discoveryFailure(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The simulator found a namespace that was looked at without a pause for as long as
// the wall clock, set back, was before its deletion.
func TestAClockThatIsSetBackMakesNoHaste(t *testing.T) {
	n := deletedFor(-time.Hour)
	held := Observed{Namespace: n, Contents: []Content{content(configMaps, held)}}
	if p := plan(held, now); p.Recheck.Before(now.Add(time.Second)) {
		t.Errorf("what others hold is looked at again after %s", p.Recheck.Sub(now))
	}
	var deletions loop.Anchors
	empty := Observed{Namespace: n, Contents: []Content{content(configMaps)}, Deleted: deletions.Anchor("shop", n.DeletionTimestamp.Time, now)}
	if p := plan(empty, now); !p.Recheck.Equal(now.Add(settleTime)) || p.Finalize != nil {
		t.Errorf("an empty namespace is looked at again after %s, finalizers %v", p.Recheck.Sub(now), p.Finalize)
	}
	if p := plan(empty, now.Add(settleTime)); p.Finalize == nil {
		t.Error("it stays for as long as the clock was set back")
	}
}

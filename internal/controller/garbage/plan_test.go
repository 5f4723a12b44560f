package garbage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var (
	deployments = Kind{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, Kind: "Deployment", Namespaced: true}
	replicaSets = Kind{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, Kind: "ReplicaSet", Namespaced: true}
	pods        = Kind{Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}
	nodes       = Kind{Resource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Kind: "Node"}
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ref(kind Kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: kind.APIVersion(), Kind: kind.Kind, Name: name, UID: uid}
}

func blockingRef(kind Kind, name string, uid types.UID) metav1.OwnerReference {
	r := ref(kind, name, uid)
	yes := true
	r.BlockOwnerDeletion = &yes
	return r
}

// webPod is Pod web-1 of ReplicaSet web; a test names what is special.
func webPod(change ...func(*Object)) Object {
	o := Object{
		Kind: pods, Namespace: "shop", Name: "web-1", UID: "pod", ResourceVersion: "7",
		Owners: []metav1.OwnerReference{ref(replicaSets, "web", "rs")},
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

func web(change ...func(*Object)) Object {
	o := Object{Kind: replicaSets, Namespace: "shop", Name: "web", UID: "rs", ResourceVersion: "5"}
	for _, f := range change {
		f(&o)
	}
	return o
}

func deletingWith(finalizers ...string) func(*Object) {
	return func(o *Object) { o.Deleting, o.Finalizers = true, finalizers }
}

func owned(o Object, states ...OwnerState) Observed {
	var owners []Owner
	for i, state := range states {
		owners = append(owners, Owner{Ref: o.Owners[i], State: state})
	}
	return Observed{Object: &o, Owners: owners}
}

func twoOwners(o *Object) { o.Owners = append(o.Owners, ref(deployments, "other", "other")) }

var planTests = []struct {
	name     string
	observed Observed
	want     Plan
}{
	{"an object without owners stays", Observed{Object: ptr(web())}, Plan{}},
	{"an object whose owner lives stays", owned(webPod(), OwnerLives), Plan{}},
	{"an object whose only owner is gone is deleted in the background", owned(webPod(), OwnerAbsent), Plan{Actions: []Action{
		Delete{Target: webPod(), Policy: metav1.DeletePropagationBackground, Why: "no owner is left: ReplicaSet web"},
	}}},
	{"an orphan finalizer that was put on beforehand is honoured",
		owned(webPod(func(o *Object) { o.Finalizers = []string{"orphan"} }), OwnerAbsent), Plan{Actions: []Action{
			Delete{Target: webPod(func(o *Object) { o.Finalizers = []string{"orphan"} }), Policy: metav1.DeletePropagationOrphan, Why: "no owner is left: ReplicaSet web"},
		}}},
	{"of two owners one lives: only the dangling reference goes", owned(webPod(twoOwners), OwnerAbsent, OwnerLives), Plan{Actions: []Action{
		DropOwners{Target: webPod(twoOwners), Refs: webPod().Owners, Why: "kept by Deployment other; gone: ReplicaSet web"},
	}}},
	{"of two owners one lives: the one that waits for its dependents is let go too",
		owned(webPod(twoOwners), OwnerDeletingDependents, OwnerLives), Plan{Actions: []Action{
			DropOwners{Target: webPod(twoOwners), Refs: webPod().Owners, Why: "kept by Deployment other; gone: ReplicaSet web"},
		}}},
	{"a kind that is not served proves nothing", owned(webPod(), OwnerUnknown), Plan{Recheck: now.Add(30 * time.Second)}},
	{"an owner that may exist keeps its dependent, which lets go of the one that is gone", owned(webPod(twoOwners), OwnerAbsent, OwnerUnknown), Plan{
		Actions: []Action{DropOwners{Target: webPod(twoOwners), Refs: webPod().Owners, Why: "kept by Deployment other; gone: ReplicaSet web"}},
		Recheck: now.Add(30 * time.Second),
	}},
	{"a namespaced owner of a cluster-scoped object is nobody's to judge", owned(webPod(), OwnerOutOfReach), Plan{}},
	{"an owner in another namespace is reported, then counts as gone",
		Observed{Object: ptr(webPod()), Owners: []Owner{{Ref: webPod().Owners[0], State: OwnerAbsent, Elsewhere: true}}}, Plan{Actions: []Action{
			Report{Target: webPod(), Reason: "OwnerRefInvalidNamespace",
				Message: `ownerRef [apps/v1/ReplicaSet, namespace: shop, name: web, uid: rs] does not exist in namespace "shop"`},
			Delete{Target: webPod(), Policy: metav1.DeletePropagationBackground, Why: "no owner is left: ReplicaSet web"},
		}}},
	{"an owner waits: a leaf is deleted in the background", owned(webPod(), OwnerDeletingDependents), Plan{Actions: []Action{
		Delete{Target: webPod(), Policy: metav1.DeletePropagationBackground, Why: "no owner is left: ReplicaSet web"},
	}}},
	{"an owner waits: what has dependents itself is deleted in the foreground",
		with(owned(webPod(), OwnerDeletingDependents), func(o *Observed) { o.Dependents = []Dependent{{Object: web()}} }), Plan{Actions: []Action{
			Delete{Target: webPod(), Policy: metav1.DeletePropagationForeground, Why: "owner ReplicaSet web is deleted in the foreground"},
		}}},
	{"an owner waits: nothing is a leaf before every kind is listed",
		with(owned(webPod(), OwnerDeletingDependents), func(o *Observed) { o.CompleteAt = now.Add(time.Second) }), Plan{Recheck: now.Add(time.Second)}},
	{"what is being deleted needs nothing", Observed{Object: ptr(webPod(deletingWith("example.com/mine")))}, Plan{}},

	{"foreground: nothing depends on it any more, so it is released",
		Observed{Object: ptr(web(deletingWith("foregroundDeletion")))}, Plan{Actions: []Action{
			Release{Target: web(deletingWith("foregroundDeletion")), Finalizer: "foregroundDeletion", Why: "no dependent blocks its deletion any more"},
		}}},
	{"foreground: a dependent that does not block is not waited for",
		Observed{Object: ptr(web(deletingWith("foregroundDeletion"))), Dependents: []Dependent{{Object: webPod()}}}, Plan{Actions: []Action{
			Release{Target: web(deletingWith("foregroundDeletion")), Finalizer: "foregroundDeletion", Why: "no dependent blocks its deletion any more"},
		}}},
	{"foreground: a blocking dependent is waited for, and put in line",
		Observed{Object: ptr(web(deletingWith("foregroundDeletion"))), Dependents: []Dependent{{Object: webPod(), Blocking: true}}}, Plan{Actions: []Action{
			Examine{UID: "pod"},
		}}},
	{"foreground: a blocking dependent on its way out is waited for",
		Observed{Object: ptr(web(deletingWith("foregroundDeletion"))), Dependents: []Dependent{{Object: webPod(deletingWith()), Blocking: true}}}, Plan{}},
	{"foreground: a circle is broken",
		Observed{Object: ptr(web(deletingWith("foregroundDeletion"))), Dependents: []Dependent{
			{Object: webPod(deletingWith("foregroundDeletion")), Blocking: true, InCircle: true}}}, Plan{Actions: []Action{
			Unblock{Target: webPod(deletingWith("foregroundDeletion")), Owner: "rs", Why: "it and its owner ReplicaSet shop/web wait for each other"},
		}}},
	{"foreground: not released before every kind is listed",
		Observed{Object: ptr(web(deletingWith("foregroundDeletion"))), CompleteAt: now.Add(time.Second)}, Plan{Recheck: now.Add(time.Second)}},

	{"orphan: dependents are let go first, then the owner",
		Observed{Object: ptr(web(deletingWith("example.com/mine", "orphan"))), Dependents: []Dependent{{Object: webPod()}}}, Plan{Actions: []Action{
			DropOwners{Target: webPod(), Refs: webPod().Owners, Why: "owner ReplicaSet shop/web is deleted and orphans its dependents"},
			Release{Target: web(deletingWith("example.com/mine", "orphan")), Finalizer: "orphan", Why: "no dependent names it any more (1 did)"},
		}}},
	{"orphan: nothing happens before every kind is listed",
		Observed{Object: ptr(web(deletingWith("orphan"))), CompleteAt: now.Add(time.Second)}, Plan{Recheck: now.Add(time.Second)}},

	{"a UID that nobody names needs nothing", Observed{}, Plan{}},
	{"a named owner that is absent puts in line only those that named it so", Observed{Claims: []Claim{
		{Namespace: "bank", State: OwnerAbsent, Dependents: []types.UID{"a", "b"}},
		{Namespace: "shop", State: OwnerLives, Dependents: []types.UID{"c"}},
	}}, Plan{Actions: []Action{Examine{UID: "a"}, Examine{UID: "b"}}, Recheck: now.Add(30 * time.Second)}},
	{"a named owner of a kind that is not served is asked for again", Observed{Claims: []Claim{
		{State: OwnerUnknown, Dependents: []types.UID{"a"}},
	}}, Plan{Recheck: now.Add(30 * time.Second)}},
}

func TestPlan(t *testing.T) {
	for _, tt := range planTests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, plan(tt.observed, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPatchesTouchOnlyWhatTheyTested(t *testing.T) {
	o := webPod(func(o *Object) {
		o.Owners = []metav1.OwnerReference{blockingRef(replicaSets, "a", "a"), ref(replicaSets, "b", "b"), blockingRef(replicaSets, "c", "c")}
		o.Finalizers = []string{"x", "orphan"}
	})
	tests := []struct {
		name string
		got  []op
		want []op
	}{
		{"references go from the end", dropOwners(o, []metav1.OwnerReference{ref(replicaSets, "a", "a"), ref(replicaSets, "c", "c")}), []op{
			{Op: "test", Path: "/metadata/ownerReferences/2/uid", Value: "c"}, {Op: "test", Path: "/metadata/ownerReferences/2/name", Value: "c"},
			{Op: "remove", Path: "/metadata/ownerReferences/2"},
			{Op: "test", Path: "/metadata/ownerReferences/0/uid", Value: "a"}, {Op: "test", Path: "/metadata/ownerReferences/0/name", Value: "a"},
			{Op: "remove", Path: "/metadata/ownerReferences/0"},
		}},
		{"a reference with the same UID and another name stays", dropOwners(o, []metav1.OwnerReference{ref(replicaSets, "z", "a")}), nil},
		{"a reference that is not there needs nothing", dropOwners(o, []metav1.OwnerReference{ref(replicaSets, "z", "z")}), nil},
		{"only a blocking reference is unblocked", unblock(o, "c"), []op{
			{Op: "test", Path: "/metadata/ownerReferences/2/uid", Value: "c"},
			{Op: "replace", Path: "/metadata/ownerReferences/2/blockOwnerDeletion", Value: false},
		}},
		{"a reference that does not block needs nothing", unblock(o, "b"), nil},
		{"one finalizer goes", release(o, "orphan"), []op{
			{Op: "test", Path: "/metadata/finalizers/1", Value: "orphan"}, {Op: "remove", Path: "/metadata/finalizers/1"},
		}},
		{"a finalizer that is not there needs nothing", release(o, "foregroundDeletion"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.got); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCatalogChoosesThePreferredVersionOfWhatCanBeCollected(t *testing.T) {
	all := metav1.Verbs{"create", "delete", "get", "list", "watch"}
	groups := []*metav1.APIGroup{
		{Name: "", PreferredVersion: metav1.GroupVersionForDiscovery{Version: "v1"}},
		{Name: "apps", PreferredVersion: metav1.GroupVersionForDiscovery{Version: "v1"}},
	}
	lists := []*metav1.APIResourceList{
		{GroupVersion: "apps/v1beta1", APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true, Verbs: all}, {Name: "olds", Kind: "Old", Verbs: all}}},
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true, Verbs: all}, {Name: "deployments/scale", Kind: "Scale", Verbs: all}}},
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "nodes", Kind: "Node", Verbs: all}, {Name: "events", Kind: "Event", Namespaced: true, Verbs: all},
			{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
		}},
	}
	got := newCatalog(groups, lists)
	old := Kind{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1beta1", Resource: "olds"}, Kind: "Old"}
	if diff := cmp.Diff([]Kind{nodes, deployments, old}, got.watched); diff != "" {
		t.Errorf("watched (-want +got):\n%s", diff)
	}
	if k, ok := got.kindOf("apps/v1beta1", "Deployment"); !ok || k.Resource.Version != "v1beta1" {
		t.Errorf("an owner reference may name any served version, got %v %v", k, ok)
	}
	if _, ok := got.kindOf("v1", "Event"); !ok {
		t.Error("an event can still be named as an owner")
	}

	gone := newCatalog(groups, lists[2:]).withFailed(got, map[schema.GroupVersion]error{{Group: "apps", Version: "v1"}: nil})
	if diff := cmp.Diff([]Kind{nodes, deployments}, gone.watched); diff != "" {
		t.Errorf("kinds of a group that did not answer stay (-want +got):\n%s", diff)
	}
}

func ptr[T any](v T) *T { return &v }

func with(o Observed, change func(*Observed)) Observed {
	change(&o)
	return o
}

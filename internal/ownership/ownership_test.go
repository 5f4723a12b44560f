package ownership

import (
	"errors"
	"slices"
	"testing"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
)

var kind = apps.SchemeGroupVersion.WithKind("ReplicaSet")

func owner(name string) *apps.ReplicaSet {
	return &apps.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-of-a"}}
}

func pod(version string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1", ResourceVersion: version}}
	for _, c := range change {
		c(p)
	}
	return p
}

func ownedBy(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner(name), kind)}
	}
}

func labelled(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }

func TestPatchesNameTheOwnerAndTheVersion(t *testing.T) {
	adopt := `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"a","uid":"uid-of-a","controller":true,"blockOwnerDeletion":true}],"resourceVersion":"7","uid":"1"}}`
	if got := string(AdoptPatch(pod("7"), owner("a"), kind)); got != adopt {
		t.Errorf("adopt:\n%s\nwant\n%s", got, adopt)
	}
	release := `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"uid-of-a"}],"resourceVersion":"7","uid":"1"}}`
	if got := string(ReleasePatch(pod("7"), owner("a"))); got != release {
		t.Errorf("release:\n%s\nwant\n%s", got, release)
	}
}

func TestAnswers(t *testing.T) {
	of := schema.GroupResource{Resource: "pods"}
	gone, conflict := apierrors.NewNotFound(of, "p"), apierrors.NewConflict(of, "p", errors.New("x"))
	invalid, refused := apierrors.NewInvalid(kind.GroupKind(), "p", nil), apierrors.NewForbidden(of, "p", errors.New("x"))
	for _, tt := range []struct {
		answer         error
		adopt, release error
		gone           bool
	}{
		{nil, nil, nil, false},
		{gone, loop.ErrStale, nil, true},
		{conflict, loop.ErrStale, loop.ErrStale, false},
		{invalid, invalid, nil, true},
		{refused, refused, refused, false},
	} {
		if got := AfterAdopt(tt.answer); !errors.Is(got, tt.adopt) {
			t.Errorf("adopt answered %v: %v, want %v", tt.answer, got, tt.adopt)
		}
		if isGone, got := AfterRelease(tt.answer); !errors.Is(got, tt.release) || isGone != tt.gone {
			t.Errorf("release answered %v: %v, %v, want %v, %v", tt.answer, isGone, got, tt.gone, tt.release)
		}
	}
}

func TestStillOwns(t *testing.T) {
	another, ending := owner("a"), owner("a")
	another.UID = "2"
	ending.DeletionTimestamp = &metav1.Time{}
	for fresh, want := range map[*apps.ReplicaSet]error{owner("a"): nil, another: loop.ErrStale, ending: loop.ErrStale} {
		if got := StillOwns(owner("a"), fresh); !errors.Is(got, want) {
			t.Errorf("StillOwns(%v) = %v, want %v", fresh.UID, got, want)
		}
	}
}

func TestWakesWhomAChangeConcerns(t *testing.T) {
	foreign := func(p *v1.Pod) {
		ownedBy("a")(p)
		p.OwnerReferences[0].Kind = "Job"
	}
	for _, tt := range []struct {
		name    string
		was, is *v1.Pod
		want    []string
	}{
		{"a new one with an owner", nil, pod("1", ownedBy("a")), []string{"ns/a"}},
		{"a new one without", nil, pod("1"), []string{"selecting"}},
		{"a resync", pod("1", ownedBy("a")), pod("1", ownedBy("a")), nil},
		{"a change of an owned one", pod("1", ownedBy("a")), pod("2", ownedBy("a")), []string{"ns/a", "ns/a"}},
		{"another owner", pod("1", ownedBy("a")), pod("2", ownedBy("b")), []string{"ns/a", "ns/b"}},
		{"an owner of another kind", nil, pod("1", foreign), nil},
		{"a released one", pod("1", ownedBy("a")), pod("2"), []string{"ns/a", "selecting"}},
		{"an orphan that changed its labels", pod("1"), pod("2", labelled), []string{"selecting"}},
		{"an orphan that changed otherwise", pod("1"), pod("2"), nil},
		{"a deleted one", pod("1", ownedBy("a")), nil, []string{"ns/a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var woken []string
			handler := Waker{Kind: kind, Wake: func(key string) { woken = append(woken, key) },
				Selecting: func(metav1.Object) { woken = append(woken, "selecting") }}.Handler()
			switch {
			case tt.was == nil:
				handler.OnAdd(tt.is, false)
			case tt.is == nil:
				handler.OnDelete(cache.DeletedFinalStateUnknown{Obj: tt.was})
			default:
				handler.OnUpdate(tt.was, tt.is)
			}
			if !slices.Equal(woken, tt.want) {
				t.Errorf("woken %v, want %v", woken, tt.want)
			}
		})
	}
}

package apiserver

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

func encoded(t *testing.T, codec runtime.Codec, name, owner, image string) []byte {
	t.Helper()
	p := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": owner}},
		Spec: core.PodSpec{Containers: []core.Container{{Name: "web", Image: image}}}}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner), Controller: ptr.To(true)}}
	}
	data, err := runtime.Encode(codec, p)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestPodsOfOneControllerShareWhatIsTheSame(t *testing.T) {
	plain := legacyscheme.Codecs.LegacyCodec(v1.SchemeGroupVersion)
	codec := newSharingCodec(plain)
	decode := func(name, owner, image string) *core.Pod {
		t.Helper()
		data := encoded(t, plain, name, owner, image)
		got, err := runtime.Decode(codec, data)
		if err != nil {
			t.Fatal(err)
		}
		want, err := runtime.Decode(plain, data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s says something else (-plain +sharing):\n%s", name, diff)
		}
		return got.(*core.Pod)
	}
	first, same, other := decode("a", "one", "web:1"), decode("b", "one", "web:1"), decode("c", "one", "web:2")
	foreign, bare, bareToo := decode("d", "two", "web:1"), decode("e", "", "web:1"), decode("f", "", "web:1")
	shares := func(a, b *core.Pod) bool { return &a.Spec.Containers[0] == &b.Spec.Containers[0] }
	for what, got := range map[string]bool{
		"two alike share":                      shares(first, same),
		"what differs is not shared":           !shares(same, other),
		"Pods of different controllers do not": !shares(first, foreign),
		"nor those without a controller":       !shares(bare, bareToo),
	} {
		if !got {
			t.Errorf("not so: %s", what)
		}
	}
	into := &core.Pod{}
	if _, _, err := codec.Decode(encoded(t, plain, "g", "one", "web:2"), nil, into); err != nil {
		t.Fatal(err)
	}
	if shares(into, other) {
		t.Error("what is decoded into the caller's own object shares memory, and the caller may change it")
	}
}

// Watches decode several objects at once; the race detector looks on.
func TestPodsAreSharedByManyAtOnce(t *testing.T) {
	plain := legacyscheme.Codecs.LegacyCodec(v1.SchemeGroupVersion)
	codec := newSharingCodec(plain)
	data := encoded(t, plain, "a", "one", "web:1")
	var decoding errgroup.Group
	for range 8 {
		decoding.Go(func() error {
			for range 200 {
				if _, err := runtime.Decode(codec, data); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := decoding.Wait(); err != nil {
		t.Fatal(err)
	}
}

// What marks a Pod as to be deleted leaves its status and its managers as they were.
func TestVersionsOfOnePodShareTheirStatus(t *testing.T) {
	plain := legacyscheme.Codecs.LegacyCodec(v1.SchemeGroupVersion)
	codec := newSharingCodec(plain)
	pod := &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "1",
			OwnerReferences: []metav1.OwnerReference{{UID: "one", Controller: ptr.To(true)}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "mend", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{}}`)}}}},
		Status: core.PodStatus{Phase: core.PodRunning, Conditions: []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}},
	}
	decode := func() *core.Pod {
		t.Helper()
		data, err := runtime.Encode(plain, pod)
		if err != nil {
			t.Fatal(err)
		}
		got, err := runtime.Decode(codec, data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(pod.Status, got.(*core.Pod).Status); diff != "" {
			t.Errorf("another status (-want +got):\n%s", diff)
		}
		return got.(*core.Pod)
	}
	first := decode()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1e9, 0)}, ptr.To[int64](1)
	marked := decode()
	if &first.Status.Conditions[0] != &marked.Status.Conditions[0] || first.ManagedFields[0].FieldsV1 != marked.ManagedFields[0].FieldsV1 {
		t.Error("two versions do not share what is the same")
	}
	pod.Status.Conditions[0].Status = core.ConditionFalse
	if unready := decode(); &unready.Status.Conditions[0] == &marked.Status.Conditions[0] {
		t.Error("what differs is shared")
	}
}

package view

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

func pod(name, uid, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: version}}
}

// A cache catches up with a write when it has seen that version or a later one
// of any object of the kind: versions are the store's, not the object's.
func TestCaughtUp(t *testing.T) {
	terminating := pod("a", "1", "12")
	terminating.DeletionTimestamp = &metav1.Time{}
	tests := []struct {
		name  string
		note  func(*Writes)
		event func(cache.Store) error
		want  bool
	}{
		{"nothing was written", func(*Writes) {}, nil, true},
		{"a write that the cache has not seen", func(w *Writes) { w.Wrote("k", "pods", pod("a", "1", "11")) }, nil, false},
		{"another key's write", func(w *Writes) { w.Wrote("other", "pods", pod("a", "1", "11")) }, nil, true},
		{"a write that the cache has seen", func(w *Writes) { w.Wrote("k", "pods", pod("a", "1", "11")) },
			func(s cache.Store) error { return s.Add(pod("a", "1", "11")) }, true},
		{"a later event of another object", func(w *Writes) { w.Wrote("k", "pods", pod("a", "1", "11")) },
			func(s cache.Store) error { return s.Add(pod("b", "2", "12")) }, true},
		{"an earlier event after the last write", func(w *Writes) {
			w.Wrote("k", "pods", pod("b", "2", "13"))
			w.Wrote("k", "pods", pod("a", "1", "11"))
		}, func(s cache.Store) error { return s.Add(pod("a", "1", "12")) }, false},
		{"a version with more digits is later", func(w *Writes) { w.Wrote("k", "pods", pod("a", "1", "100")) },
			func(s cache.Store) error { return s.Add(pod("a", "1", "99")) }, false},
		{"a deletion that the cache has not seen", func(w *Writes) { w.Deleted("k", "pods", pod("old", "9", "5")) }, nil, false},
		{"a deleted object is gone", func(w *Writes) { w.Deleted("k", "pods", pod("old", "9", "5")) },
			func(s cache.Store) error { return s.Delete(pod("old", "9", "12")) }, true},
		{"a deleted object ends in grace", func(w *Writes) { w.Deleted("k", "pods", pod("a", "1", "5")) },
			func(s cache.Store) error { return s.Add(terminating) }, true},
		{"a deleted object's name was taken by another", func(w *Writes) { w.Deleted("k", "pods", pod("old", "9", "5")) },
			func(s cache.Store) error { return s.Update(pod("old", "10", "12")) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
			if err := store.Replace([]any{pod("old", "9", "5")}, "10"); err != nil {
				t.Fatal(err)
			}
			writes := NewWrites(map[string]cache.Store{"pods": store})
			tt.note(writes)
			if tt.event != nil {
				if err := tt.event(store); err != nil {
					t.Fatal(err)
				}
			}
			if got := writes.CaughtUp("k"); got != tt.want {
				t.Errorf("CaughtUp = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestForgetDropsWhatIsNoted(t *testing.T) {
	writes := NewWrites(map[string]cache.Store{"pods": cache.NewStore(cache.MetaNamespaceKeyFunc)})
	writes.Wrote("k", "pods", pod("a", "1", "11"))
	writes.Deleted("k", "pods", pod("a", "1", "11"))
	writes.Forget("k")
	if !writes.CaughtUp("k") || len(writes.byKey) != 0 {
		t.Errorf("still noted: %v", writes.byKey)
	}
}

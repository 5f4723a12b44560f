package scheduler

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestQueuePopsByPriorityThenAgeThenArrival(t *testing.T) {
	at := func(second int64, priority int32) *v1.Pod {
		return aPod("x", func(p *v1.Pod) {
			p.CreationTimestamp = metav1.Unix(second, 0)
			p.Spec.Priority = &priority
		})
	}
	pods := map[string]*v1.Pod{
		"young":     at(30, 0),
		"old":       at(10, 0),
		"first":     at(20, 0),
		"second":    at(20, 0),
		"important": at(40, 1000),
	}
	q := &podQueue{lookup: func(key string) *v1.Pod { return pods[key] }, turns: newTurnstile()}
	for _, key := range []string{"young", "first", "second", "old", "important"} {
		q.Push(key)
	}
	var got []string
	for q.Len() > 0 {
		got = append(got, q.Pop())
	}
	if diff := cmp.Diff([]string{"important", "old", "first", "second", "young"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// Workers that took their keys in one order pass in that order, even when the
// first of them is the slowest to arrive, and even after a panic.
func TestTurnstileKeepsTheOrderOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurnstile()
		for _, key := range []string{"a", "b", "c"} {
			turns.issue(key)
		}
		var mu sync.Mutex
		var got []string
		start := func(key string, then func()) {
			go func() {
				defer func() { _ = recover() }()
				turns.pass(key, func() {
					mu.Lock()
					got = append(got, key)
					mu.Unlock()
					then()
				})
			}()
			synctest.Wait() // it has passed, or waits for its turn
		}
		start("c", func() {})
		start("b", func() { panic("in the turn") })
		start("a", func() {})
		if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

package scheduler

import (
	"cmp"
	"container/heap"
	"sync"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
)

// rank orders Pods: higher priority first, then older, then whoever asked first.
type rank struct {
	priority int32
	created  int64 // seconds; what the API stores
	asked    uint64
}

func rankOf(pod *v1.Pod, asked uint64) rank {
	return rank{priority: corev1.PodPriority(pod), created: pod.CreationTimestamp.Unix(), asked: asked}
}

func (r rank) before(other rank) bool {
	return cmp.Or(cmp.Compare(other.priority, r.priority), cmp.Compare(r.created, other.created),
		cmp.Compare(r.asked, other.asked)) < 0
}

type ranked struct {
	key string
	rank
}

// rankedHeap is a container/heap of keys.
type rankedHeap []ranked

func (h rankedHeap) Len() int           { return len(h) }
func (h rankedHeap) Less(i, j int) bool { return h[i].before(h[j].rank) }
func (h rankedHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *rankedHeap) Push(x any)        { *h = append(*h, x.(ranked)) }
func (h *rankedHeap) Pop() any {
	last := len(*h) - 1
	item := (*h)[last]
	(*h)[last] = ranked{}
	*h = (*h)[:last]
	return item
}

// podQueue is the loop's queue: it pops the Pod that goes first, and gives each
// popped key a place at the turnstile, so that several workers plan in the order
// in which their Pods left the queue. The work queue calls it one call at a time.
type podQueue struct {
	lookup func(key string) *v1.Pod // nil when there is none
	turns  *turnstile
	asked  uint64
	waits  rankedHeap
}

func (q *podQueue) Touch(string) {}
func (q *podQueue) Len() int     { return len(q.waits) }

func (q *podQueue) Push(key string) {
	q.asked++
	item := ranked{key: key, rank: rank{asked: q.asked}}
	if pod := q.lookup(key); pod != nil {
		item.rank = rankOf(pod, q.asked)
	}
	heap.Push(&q.waits, item)
}

func (q *podQueue) Pop() string {
	key := heap.Pop(&q.waits).(ranked).key
	q.turns.issue(key)
	return key
}

// turnstile lets holders of places through one at a time, in the order in which
// the places were given out. Binding happens behind it, in parallel.
type turnstile struct {
	mu     sync.Mutex
	moved  *sync.Cond
	issued uint64
	next   uint64
	places map[string]uint64
}

func newTurnstile() *turnstile {
	t := &turnstile{places: map[string]uint64{}}
	t.moved = sync.NewCond(&t.mu)
	return t
}

// issue gives key the next place. A key has at most one: the work queue never
// hands out a key twice at once.
func (t *turnstile) issue(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places[key] = t.issued
	t.issued++
}

// pass runs f when key's turn has come. A key without a place runs at once.
func (t *turnstile) pass(key string, f func()) {
	t.mu.Lock()
	place, has := t.places[key]
	delete(t.places, key)
	for has && t.next != place {
		t.moved.Wait()
	}
	t.mu.Unlock()
	if has {
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.next++
			t.moved.Broadcast()
		}()
	}
	f()
}

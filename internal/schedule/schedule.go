package schedule

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Schedule runs functions at given times. One goroutine serves all of them and
// exists only while something waits. Functions due at the same time run in the
// order in which they were added. Its methods may be called from any goroutine,
// also from a function that it runs.
type Schedule struct {
	clock clock.WithTicker

	mu      sync.Mutex
	waiting timed
	added   uint64
	running bool
	stopped bool
	changed chan struct{} // capacity 1: the earliest time may have moved
}

type entry struct {
	at    time.Time
	order uint64
	do    func()
	index int // in the heap; -1 once taken out
}

// New returns an empty schedule.
func New(c clock.WithTicker) *Schedule {
	return &Schedule{clock: c, changed: make(chan struct{}, 1)}
}

// After runs do once the delay has passed. Do must return soon: the others wait
// for it. The returned function takes it back and reports whether it came in time.
func (s *Schedule) After(delay time.Duration, do func()) (cancel func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.added++
	item := &entry{at: s.clock.Now().Add(delay), order: s.added, do: do, index: -1}
	if s.stopped {
		return func() bool { return false }
	}
	heap.Push(&s.waiting, item)
	if !s.running {
		s.running = true
		go s.run()
	} else if item.index == 0 {
		s.wake()
	}
	return func() bool { return s.takeBack(item) }
}

func (s *Schedule) takeBack(item *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if item.index < 0 {
		return false
	}
	heap.Remove(&s.waiting, item.index)
	s.wake()
	return true
}

// Stop drops everything that waits; later additions are dropped too.
func (s *Schedule) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, item := range s.waiting {
		item.index = -1
	}
	s.waiting = nil
	s.wake()
}

func (s *Schedule) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Schedule) run() {
	for {
		due, wait, done := s.next()
		switch {
		case done:
			return
		case due != nil:
			due()
			continue
		}
		timer := s.clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-s.changed:
		}
		timer.Stop()
	}
}

// next returns a function that is due, or how long until one is, or that
// nothing waits any more, in which case the goroutine counts as gone.
func (s *Schedule) next() (due func(), wait time.Duration, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.running = false
		return nil, 0, true
	}
	first := s.waiting[0]
	if wait = first.at.Sub(s.clock.Now()); wait > 0 {
		return nil, wait, false
	}
	heap.Pop(&s.waiting)
	return first.do, 0, false
}

// timed is a heap of entries, earliest first.
type timed []*entry

func (t timed) Len() int { return len(t) }

func (t timed) Less(i, j int) bool {
	if t[i].at.Equal(t[j].at) {
		return t[i].order < t[j].order
	}
	return t[i].at.Before(t[j].at)
}

func (t timed) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

func (t *timed) Push(x any) {
	item := x.(*entry)
	item.index = len(*t)
	*t = append(*t, item)
}

func (t *timed) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	last.index = -1
	return last
}

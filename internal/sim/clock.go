package sim

import (
	"time"

	"k8s.io/utils/clock"
)

// worldClock is the time the loops see. Waits go by passed, which only grows; what
// Now tells can jump.
type worldClock struct {
	clock.WithTicker // timers are the queues': nobody may make one here
	start            time.Time
	passed           time.Duration
	offset           time.Duration
}

func newClock() *worldClock {
	return &worldClock{start: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
}

func (c *worldClock) Now() time.Time                  { return c.start.Add(c.passed + c.offset) }
func (c *worldClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// queue is one loop's work queue without goroutines: the world chooses which of
// the ready keys is next, and when the waits end.
type queue struct {
	clock   *worldClock
	ready   map[string]bool
	working map[string]bool
	again   map[string]bool // added while worked on
	waits   map[string]time.Duration
	fails   map[string]int
	chosen  string // what Get returns; "": nothing
}

func newQueue(c *worldClock) *queue {
	return &queue{
		clock: c, ready: map[string]bool{}, working: map[string]bool{}, again: map[string]bool{},
		waits: map[string]time.Duration{}, fails: map[string]int{},
	}
}

func (q *queue) Add(key string) {
	if q.working[key] {
		q.again[key] = true
		return
	}
	q.ready[key] = true
}

func (q *queue) AddAfter(key string, d time.Duration) {
	if d <= 0 {
		q.Add(key)
		return
	}
	if at, waits := q.waits[key]; !waits || q.clock.passed+d < at {
		q.waits[key] = q.clock.passed + d
	}
}

// AddRateLimited waits as [mend/internal/loop] does: 5 ms doubling to 30 s.
func (q *queue) AddRateLimited(key string) {
	d := 5 * time.Millisecond << min(q.fails[key], 13)
	q.fails[key]++
	q.AddAfter(key, min(d, 30*time.Second))
}

func (q *queue) Get() (string, bool) {
	key := q.chosen
	q.chosen = ""
	if key == "" || !q.ready[key] {
		return "", true
	}
	delete(q.ready, key)
	q.working[key] = true
	return key, false
}

func (q *queue) Done(key string) {
	delete(q.working, key)
	if q.again[key] {
		delete(q.again, key)
		q.ready[key] = true
	}
}

// fire adds the keys whose wait is over.
func (q *queue) fire() {
	for key, at := range q.waits {
		if at <= q.clock.passed {
			delete(q.waits, key)
			q.Add(key)
		}
	}
}

func (q *queue) Forget(key string)          { delete(q.fails, key) }
func (q *queue) NumRequeues(key string) int { return q.fails[key] }
func (q *queue) Len() int                   { return len(q.ready) }
func (q *queue) ShutDown()                  {}
func (q *queue) ShutDownWithDrain()         {}
func (q *queue) ShuttingDown() bool         { return false }

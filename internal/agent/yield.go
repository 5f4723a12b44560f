package agent

import (
	"context"
	"sync"
	"time"
)

// What a Pod leaves behind is cleared away when no other is being started: both keep
// the same processors busy, and somebody waits for the one that starts.
const (
	// yieldLimit bounds how long clearing away waits.
	yieldLimit = 500 * time.Millisecond
	// yieldPause is how long nothing may have been started: the moment between a
	// sandbox and its container is none.
	yieldPause = 10 * time.Millisecond
)

// starts counts what is being started on the node.
type starts struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed while n is 0
}

func newStarts() *starts {
	s := &starts{none: make(chan struct{})}
	close(s.none)
	return s
}

// begin counts one start until the returned function is called.
func (s *starts) begin() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n == 1 {
		s.none = make(chan struct{})
	}
	return s.end
}

func (s *starts) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n--; s.n == 0 {
		close(s.none)
	}
}

func (s *starts) idle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.none
}

// yield returns when nothing is being started, or the limit is reached, or ctx ends.
func (s *starts) yield(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, yieldLimit)
	defer cancel()
	for {
		none := s.idle()
		select {
		case <-none:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(yieldPause):
		case <-ctx.Done():
			return
		}
		if s.idle() == none {
			return // nothing has begun since
		}
	}
}

package app

import (
	"context"
	"sync"
)

// stage is a group of parts that end together. Stages end in the reverse order
// of their start, so that nothing runs without what it stands on.
type stage struct {
	ctx    context.Context
	cancel context.CancelFunc
	parts  sync.WaitGroup
}

// newStage keeps ctx's values but not its end: stages end one by one.
func newStage(ctx context.Context) *stage {
	s := &stage{}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// run starts a part, which must return when its context ends.
func (s *stage) run(part func(ctx context.Context)) {
	s.parts.Go(func() { part(s.ctx) })
}

// end stops the parts and waits for them. It may be called again.
func (s *stage) end() {
	s.cancel()
	s.parts.Wait()
}

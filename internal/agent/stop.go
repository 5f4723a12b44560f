package agent

import (
	"context"
	"fmt"
	"time"
)

// StopPods ends everything that runs on the node, each Pod in its own grace
// period, and leaves the Pods in the API as they are: the next agent starts them
// again. It returns when nothing runs any more; Run goes on, and starts nothing.
func (a *Agent) StopPods(ctx context.Context) error {
	a.mu.Lock()
	a.halt = true
	a.mu.Unlock()
	for _, p := range a.snapshot() {
		a.loop.Add(string(p.uid))
	}
	tick := a.cfg.Clock.NewTicker(stopCheck)
	defer tick.Stop()
	for {
		left := a.running()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d Pods still run: %w", left, ctx.Err())
		case <-tick.C():
		}
	}
}

const stopCheck = 50 * time.Millisecond

// running counts the Pods of which something runs or is about to.
func (a *Agent) running() int {
	n := 0
	for _, p := range a.snapshot() {
		p.mu.Lock()
		busy := len(p.state.Live()) > 0 || p.dirty || len(p.flights) > 0
		for _, s := range p.state.Sandboxes {
			busy = busy || s.Ready
		}
		p.mu.Unlock()
		if busy {
			n++
		}
	}
	return n
}

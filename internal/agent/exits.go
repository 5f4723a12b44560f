package agent

import (
	"context"
	"slices"

	"mend/internal/agent/podruntime"
)

// followExits takes note of containers whose process has ended, some tens of milliseconds
// before the runtime tells of it: the sooner such a Pod is not ready, the fewer requests are
// led to nobody. All else about the end is the runtime's to say.
func (a *Agent) followExits(ctx context.Context) {
	a.reconnect(ctx, "the stream of exits", func(ctx context.Context) error { return a.cfg.Exits(ctx, a.exited) })
}

// exited notes the end of a container's process, and wakes the worker of its Pod, unless the
// Pod is to end anyway.
func (a *Agent) exited(container string) {
	for _, p := range a.snapshot() {
		p.mu.Lock()
		runs := slices.ContainsFunc(p.state.Live(), func(c podruntime.Container) bool { return c.ID == container }) &&
			p.api != nil && p.api.DeletionTimestamp == nil
		if runs {
			p.exited[container] = true
		}
		p.mu.Unlock()
		if runs {
			a.loop.Add(string(p.uid))
			return
		}
	}
}

// reconnect follows a stream of the runtime until ctx ends.
func (a *Agent) reconnect(ctx context.Context, what string, follow func(context.Context) error) {
	wait := minReconnect
	for ctx.Err() == nil {
		began := a.cfg.Clock.Now()
		err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if a.cfg.Clock.Since(began) > maxReconnect {
			wait = minReconnect
		}
		a.cfg.Log.Debug("a stream of the runtime's ended; will open it again", "stream", what, "err", err, "wait", wait)
		select {
		case <-ctx.Done():
			return
		case <-a.cfg.Clock.After(wait):
		}
		wait = min(2*wait, maxReconnect)
	}
}

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// stuckSlack is how long beyond the longest grace period it may take until one more Pod
// has ended. All containers have been killed by then; what a kill does not end waits in
// the kernel, as for a file system that hangs.
const stuckSlack = 10 * time.Second

// StopPods ends everything that runs on the node, each Pod in its own grace
// period, and leaves the Pods in the API as they are: the next agent starts them
// again. It returns when nothing runs any more, or with an error that names them when
// only Pods are left that cannot be ended; Run goes on, and starts nothing.
func (a *Agent) StopPods(ctx context.Context) error {
	a.mu.Lock()
	a.halt = true
	a.mu.Unlock()
	for _, p := range a.snapshot() {
		a.loop.Add(string(p.uid))
	}
	fewest, since := len(a.running()), a.cfg.Clock.Now()
	tick := a.cfg.Clock.NewTicker(stopCheck)
	defer tick.Stop()
	for {
		left := a.running()
		if len(left) == 0 {
			return nil
		}
		if len(left) < fewest {
			fewest, since = len(left), a.cfg.Clock.Now()
		}
		if a.cfg.Clock.Since(since) >= longestGrace(left)+stuckSlack {
			return fmt.Errorf("what cannot be killed, as while a file system hangs, still runs in %s", names(left))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d Pods still run: %w", len(left), ctx.Err())
		case <-tick.C():
		}
	}
}

const stopCheck = 50 * time.Millisecond

// running lists the Pods of which something runs or is about to.
func (a *Agent) running() []*pod {
	var left []*pod
	for _, p := range a.snapshot() {
		p.mu.Lock()
		busy := len(p.state.Live()) > 0 || p.dirty || len(p.flights) > 0
		for _, s := range p.state.Sandboxes {
			busy = busy || s.Ready
		}
		p.mu.Unlock()
		if busy {
			left = append(left, p)
		}
	}
	return left
}

func longestGrace(pods []*pod) time.Duration {
	longest := int64(minGrace)
	for _, p := range pods {
		p.mu.Lock()
		if p.api == nil {
			p.mu.Unlock()
			continue
		}
		if grace := p.api.Spec.TerminationGracePeriodSeconds; grace != nil {
			longest = max(longest, *grace)
		}
		if grace := p.api.DeletionGracePeriodSeconds; grace != nil {
			longest = max(longest, *grace)
		}
		p.mu.Unlock()
	}
	return time.Duration(longest) * time.Second
}

func names(pods []*pod) string {
	list := make([]string, 0, len(pods))
	for _, p := range pods {
		p.mu.Lock()
		if p.api != nil {
			list = append(list, p.api.Namespace+"/"+p.api.Name)
		}
		p.mu.Unlock()
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

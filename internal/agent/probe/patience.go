package probe

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	remote "k8s.io/cri-client/pkg"
	"k8s.io/utils/clock"
)

// killSlack is how long the runtime may take to end a command that took too long.
const killSlack = 2 * time.Second

// patient is an Execer that does not wait for a command that cannot be killed, as when
// it asks a file system that hangs; the runtime waits for it, for minutes. While it
// does, the command counts as timed out and is not run again in that container: each
// try would leave one more process.
type patient struct {
	execer Execer
	clock  clock.Clock

	mu    sync.Mutex
	stuck map[string]int // calls that are past their time, by container and command
}

func newPatient(execer Execer, c clock.Clock) *patient {
	return &patient{execer: execer, clock: c, stuck: map[string]int{}}
}

type execResult struct {
	stdout, stderr []byte
	err            error
}

// ExecSync implements [Execer].
func (p *patient) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	key := id + "\x00" + strings.Join(cmd, "\x00")
	late := fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(cmd, " "), timeout)
	if p.isStuck(key) {
		return nil, nil, late
	}
	answered := make(chan execResult, 1)
	go func() {
		var r execResult
		r.stdout, r.stderr, r.err = p.execer.ExecSync(ctx, id, cmd, timeout)
		answered <- r
	}()
	limit := p.clock.NewTimer(timeout + killSlack)
	defer limit.Stop()
	select {
	case r := <-answered:
		return r.stdout, r.stderr, r.err
	case <-limit.C():
	}
	p.count(key, 1)
	go func() {
		<-answered // it ends with ctx at the latest: with the container's probes
		p.count(key, -1)
	}()
	return nil, nil, late
}

func (p *patient) isStuck(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stuck[key] > 0
}

func (p *patient) count(key string, change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck[key] += change; p.stuck[key] == 0 {
		delete(p.stuck, key)
	}
}

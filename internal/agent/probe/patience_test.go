package probe

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	remote "k8s.io/cri-client/pkg"
	"k8s.io/utils/clock"
)

// hanging does not answer before it is let go, whatever the timeout.
type hanging struct {
	calls int
	goOn  chan struct{}
}

func (h *hanging) ExecSync(ctx context.Context, _ string, _ []string, _ time.Duration) ([]byte, []byte, error) {
	h.calls++
	select {
	case <-h.goOn:
		return []byte("late"), nil, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// TestACommandThatCannotBeKilled counts as timed out in its time, and is not run again
// in its container while it is there; others are.
func TestACommandThatCannotBeKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{goOn: make(chan struct{})}
		p := newPatient(h, clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		run := func(id string, wantCalls int, wantAfter time.Duration) {
			t.Helper()
			began := time.Now()
			_, _, err := p.ExecSync(ctx, id, []string{"ls", "/dead"}, time.Second)
			if !errors.Is(err, remote.ErrCommandTimedOut) || err.Error() != `command timed out: "ls /dead" timed out after 1s` {
				t.Errorf("got %v", err)
			}
			synctest.Wait()
			if after := time.Since(began); after != wantAfter || h.calls != wantCalls {
				t.Errorf("after %s and %d calls, want %s and %d", after, h.calls, wantAfter, wantCalls)
			}
		}
		run("a", 1, time.Second+killSlack)
		run("a", 1, 0)
		run("b", 2, time.Second+killSlack)
		close(h.goOn)
		synctest.Wait()
		if out, _, err := p.ExecSync(ctx, "a", []string{"ls", "/dead"}, time.Second); err != nil || string(out) != "late" {
			t.Errorf("once it has ended: %q, %v", out, err)
		}
	})
}

package probe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"
	"pgregory.net/rapid"
)

// script answers exec probes: the command's first word names a list of answers,
// of which the last stays.
type script struct {
	mu      sync.Mutex
	answers map[string][]string // "ok", "fail", "error", or "slow" until the timeout
	calls   []string            // "1.5s liveness"
	start   time.Time
}

func (s *script) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, []byte, error) {
	s.mu.Lock()
	s.calls = append(s.calls, fmt.Sprintf("%v %s", time.Since(s.start), cmd[0]))
	list := s.answers[cmd[0]]
	answer := list[0]
	if len(list) > 1 {
		s.answers[cmd[0]] = list[1:]
	}
	s.mu.Unlock()
	switch answer {
	case "ok":
		return nil, nil, nil
	case "error":
		return nil, nil, errors.New("rpc error: code = Unknown desc = broken")
	case "slow":
		select {
		case <-time.After(timeout):
			return nil, nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(cmd, " "), timeout)
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return []byte("out "), []byte(answer), utilexec.CodeExitError{Err: errors.New("exit"), Code: 1}
}

// world is a Manager with what it has said so far, one line per observation.
type world struct {
	*Manager
	script *script
	mu     sync.Mutex
	said   []string
}

func newWorld(t *testing.T, answers map[string][]string) *world {
	t.Helper()
	w := &world{script: &script{answers: answers, start: time.Now()}}
	say := func(what string) func(Observation) {
		return func(o Observation) {
			w.mu.Lock()
			defer w.mu.Unlock()
			result := map[Result]string{Success: "success", Failure: "failure", Unknown: "unknown"}[o.Result]
			line := fmt.Sprintf("%v %s %s %s", time.Since(w.script.start), what, o.Kind, result)
			if what == "event" {
				line = fmt.Sprintf("%v %s %s", time.Since(w.script.start), o.Reason, o.Message)
			}
			w.said = append(w.said, line)
		}
	}
	w.Manager = NewManager(Options{Execer: w.script, OnChange: say("change"), OnFailure: say("event"), Jitter: func() float64 { return 0.5 }})
	t.Cleanup(w.Stop)
	return w
}

func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.said, want) {
		t.Errorf("said:\n  %s\nwant:\n  %s", strings.Join(w.said, "\n  "), strings.Join(want, "\n  "))
	}
}

func (w *world) expectCalls(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	w.script.mu.Lock()
	defer w.script.mu.Unlock()
	if !slices.Equal(w.script.calls, want) {
		t.Errorf("attempts:\n  %s\nwant:\n  %s", strings.Join(w.script.calls, "\n  "), strings.Join(want, "\n  "))
	}
}

// execProbe runs the command named by its kind, each second, with upstream's
// default thresholds.
func execProbe(name string, change func(*v1.Probe)) *v1.Probe {
	made := &v1.Probe{
		ProbeHandler:     v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{name}}},
		PeriodSeconds:    1,
		TimeoutSeconds:   1,
		SuccessThreshold: 1,
		FailureThreshold: 3,
	}
	if change != nil {
		change(made)
	}
	return made
}

func target(id string, container v1.Container) Target {
	container.Name = "app"
	return Target{
		Pod:         &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid"}},
		Container:   &container,
		ContainerID: id,
		StartedAt:   time.Now(),
	}
}

func pass(d time.Duration) { <-time.After(d) }

func TestReadinessIsProbedAtOnceAndToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"ready": {"fail", "ok", "ok", "fail", "fail", "fail"}})
		w.Ensure(target("c1", v1.Container{ReadinessProbe: execProbe("ready", nil)}))
		pass(5500 * time.Millisecond)
		w.expectCalls(t, "0s ready", "1s ready", "2s ready", "3s ready", "4s ready", "5s ready")
		w.expect(t,
			"0s Unhealthy Readiness probe failed: out fail",
			"1s change Readiness success",
			"3s Unhealthy Readiness probe failed: out fail",
			"4s Unhealthy Readiness probe failed: out fail",
			"5s Unhealthy Readiness probe failed: out fail",
			"5s change Readiness failure")
	})
}

func TestStartupGatesTheOthersAndOpensThemAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"start": {"fail", "fail", "ok"}, "live": {"ok"}, "ready": {"ok"}})
		w.Ensure(target("c1", v1.Container{
			StartupProbe:   execProbe("start", func(p *v1.Probe) { p.PeriodSeconds = 2; p.FailureThreshold = 10 }),
			LivenessProbe:  execProbe("live", func(p *v1.Probe) { p.PeriodSeconds = 10 }),
			ReadinessProbe: execProbe("ready", func(p *v1.Probe) { p.PeriodSeconds = 10 }),
		}))
		pass(9 * time.Second)
		w.script.mu.Lock()
		slices.Sort(w.script.calls) // liveness and readiness begin in the same moment
		w.script.mu.Unlock()
		w.expectCalls(t, "0s start", "2s start", "4s live", "4s ready", "4s start")
	})
}

func TestStartupThatFailsIsToldOnceAndHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"start": {"fail"}, "live": {"ok"}})
		w.Ensure(target("c1", v1.Container{
			StartupProbe:  execProbe("start", func(p *v1.Probe) { p.FailureThreshold = 2 }),
			LivenessProbe: execProbe("live", nil),
		}))
		pass(time.Minute)
		w.expect(t,
			"0s Unhealthy Startup probe failed: out fail",
			"1s Unhealthy Startup probe failed: out fail",
			"1s change Startup failure")
	})
}

func TestLivenessThatFailsIsHeldUntilTheContainerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"live": {"ok", "fail", "ok", "fail", "fail", "fail", "ok"}})
		container := v1.Container{LivenessProbe: execProbe("live", nil)}
		w.Ensure(target("c1", container))
		pass(30 * time.Second)
		w.expectCalls(t, "0s live", "1s live", "2s live", "3s live", "4s live", "5s live")
		w.Ensure(target("c1", container))
		pass(30 * time.Second)
		w.Ensure(target("c2", container))
		pass(500 * time.Millisecond)
		w.expect(t,
			"0s change Liveness success",
			"1s Unhealthy Liveness probe failed: out fail",
			"3s Unhealthy Liveness probe failed: out fail",
			"4s Unhealthy Liveness probe failed: out fail",
			"5s Unhealthy Liveness probe failed: out fail",
			"5s change Liveness failure",
			"1m0s change Liveness success")
	})
}

func TestInitialDelayCountsFromTheContainersStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"live": {"ok"}})
		at := target("c1", v1.Container{LivenessProbe: execProbe("live", func(p *v1.Probe) { p.InitialDelaySeconds = 5; p.PeriodSeconds = 10 })})
		pass(2 * time.Second)
		w.Ensure(at) // started 2 s ago
		pass(20 * time.Second)
		w.expectCalls(t, "5s live", "15s live")
	})
}

func TestInitialDelayIsNoLongerWhenTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"live": {"ok"}})
		at := target("c1", v1.Container{LivenessProbe: execProbe("live", func(p *v1.Probe) { p.InitialDelaySeconds = 5; p.PeriodSeconds = 10 })})
		at.StartedAt = time.Now().Add(24 * time.Hour)
		w.Ensure(at)
		pass(20 * time.Second)
		w.expectCalls(t, "5s live", "15s live")
	})
}

func TestTimeoutIsAFailureWithKubeletsText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"live": {"slow"}})
		w.Ensure(target("c1", v1.Container{LivenessProbe: execProbe("live", func(p *v1.Probe) { p.TimeoutSeconds = 3; p.FailureThreshold = 1 })}))
		pass(10 * time.Second)
		w.expect(t,
			`3s Unhealthy Liveness probe failed: command timed out: "live" timed out after 3s`,
			"3s change Liveness failure")
	})
}

func TestAttemptLongerThanItsPeriodIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"live": {"slow", "ok"}})
		w.Ensure(target("c1", v1.Container{LivenessProbe: execProbe("live", func(p *v1.Probe) { p.TimeoutSeconds = 3 })}))
		pass(4500 * time.Millisecond)
		w.expectCalls(t, "0s live", "3s live", "4s live")
	})
}

func TestAttemptThatCannotBeMadeCountsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"live": {"error"}})
		w.Ensure(target("c1", v1.Container{LivenessProbe: execProbe("live", func(p *v1.Probe) { p.FailureThreshold = 1 })}))
		pass(500 * time.Millisecond)
		w.expectCalls(t, "0s live", "0s live", "0s live") // tried three times
		w.expect(t, "0s Unhealthy Liveness probe errored and resulted in unknown state: rpc error: code = Unknown desc = broken")
	})
}

func TestDeletionEndsStartupAndLivenessButNotReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"start": {"fail"}, "live": {"fail"}, "ready": {"ok", "fail"}})
		at := target("c1", v1.Container{
			StartupProbe:   execProbe("start", func(p *v1.Probe) { p.FailureThreshold = 100 }),
			LivenessProbe:  execProbe("live", nil),
			ReadinessProbe: execProbe("ready", func(p *v1.Probe) { p.FailureThreshold = 2 }),
		})
		w.Ensure(at)
		pass(1500 * time.Millisecond)
		deleted := at.Pod.DeepCopy()
		now := metav1.Now()
		deleted.DeletionTimestamp = &now
		at.Pod = deleted
		w.Ensure(at)
		w.Ensure(at)
		pass(10 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		changes := slices.DeleteFunc(slices.Clone(w.said), func(line string) bool { return !strings.Contains(line, "change") })
		want := []string{"1.5s change Startup success", "1.5s change Liveness success", "1.5s change Readiness success", "3.5s change Readiness failure"}
		if !slices.Equal(changes, want) {
			t.Errorf("changes %q, want %q", changes, want)
		}
	})
}

func TestRemovedProbesSayNothingMore(t *testing.T) {
	for name, remove := range map[string]func(*world){
		"container": func(w *world) { w.Remove("uid", "app") },
		"pod":       func(w *world) { w.RemovePod("uid") },
		"all":       func(w *world) { w.Stop() },
		"replaced by one without probes": func(w *world) {
			w.Ensure(target("c2", v1.Container{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, map[string][]string{"live": {"slow"}, "ready": {"fail"}})
				w.Ensure(target("c1", v1.Container{LivenessProbe: execProbe("live", nil), ReadinessProbe: execProbe("ready", func(p *v1.Probe) { p.InitialDelaySeconds = 3 })}))
				pass(500 * time.Millisecond) // liveness is under way, readiness waits
				remove(w)
				pass(time.Minute)
				w.expect(t)
				w.expectCalls(t, "0s live")
			})
		})
	}
}

func TestRestartedAgentSpreadsFirstAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now()
		pass(time.Hour)
		w := newWorld(t, map[string][]string{"live": {"ok"}, "start": {"fail"}})
		at := target("c1", v1.Container{
			StartupProbe:  execProbe("start", nil),
			LivenessProbe: execProbe("live", func(p *v1.Probe) { p.PeriodSeconds = 10 }),
		})
		at.StartedAt, at.Started = before, true
		w.Ensure(at)
		pass(20 * time.Second)
		w.expectCalls(t, "5s live", "15s live") // half of the period first; startup is over
	})
}

func TestManyProbesRestWithoutGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string][]string{"ready": {"ok"}})
		before := runtime.NumGoroutine()
		for i := range 5000 {
			at := target(fmt.Sprint("c", i), v1.Container{ReadinessProbe: execProbe("ready", func(p *v1.Probe) { p.PeriodSeconds = 10 })})
			at.Pod.UID = types.UID(fmt.Sprint("uid", i))
			w.Ensure(at)
		}
		pass(time.Second)
		synctest.Wait()
		// The schedule has one; a few of other tests may still be on their way out.
		if extra := runtime.NumGoroutine() - before; extra > 10 {
			t.Errorf("%d goroutines for 5,000 probes at rest, want the schedule's one", extra)
		}
		w.script.mu.Lock()
		defer w.script.mu.Unlock()
		if len(w.script.calls) != 5000 {
			t.Errorf("%d attempts, want 5,000", len(w.script.calls))
		}
	})
}

// TestTally compares with a plain reading of the rule: a result is settled when
// the last `threshold` attempts that could be made all had it.
func TestTally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		successes := rapid.Int32Range(1, 4).Draw(t, "successThreshold")
		failures := rapid.Int32Range(1, 4).Draw(t, "failureThreshold")
		attempts := rapid.SliceOf(rapid.SampledFrom([]Result{Success, Failure, Unknown})).Draw(t, "attempts")
		var counted tally
		var made []Result
		settled := Unknown
		for _, result := range attempts {
			before := settled
			if result != Unknown {
				made = append(made, result)
				if endsIn(made, Success, int(successes)) {
					settled = Success
				}
				if endsIn(made, Failure, int(failures)) {
					settled = Failure
				}
			}
			var changed bool
			counted, changed = counted.add(result, successes, failures)
			if counted.settled != settled || changed != (settled != before) {
				t.Fatalf("after %v: settled %v (changed %v), want %v (changed %v)", made, counted.settled, changed, settled, settled != before)
			}
		}
	})
}

func endsIn(list []Result, wanted Result, n int) bool {
	if len(list) < n {
		return false
	}
	for _, result := range list[len(list)-n:] {
		if result != wanted {
			return false
		}
	}
	return true
}

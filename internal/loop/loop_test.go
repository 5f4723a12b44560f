package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// journal records when each key was synced.
type journal struct {
	mu    sync.Mutex
	times map[string][]time.Duration
	start time.Time
}

func (j *journal) note(key string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.times[key] = append(j.times[key], time.Since(j.start))
	return len(j.times[key])
}

// runFor runs a loop in fake time and returns what it did.
func runFor(t *testing.T, d time.Duration, keys []string, sync func(n int, key string) (time.Time, error)) (*Loop, map[string][]time.Duration) {
	t.Helper()
	var made *Loop
	log := &journal{times: map[string][]time.Duration{}}
	synctest.Test(t, func(t *testing.T) {
		log.start = time.Now()
		made = New(Options{Name: t.Name(), Log: slog.New(slog.DiscardHandler), Reconciler: Func(
			func(_ context.Context, key string) (time.Time, error) { return sync(log.note(key), key) })})
		for _, key := range keys {
			made.Add(key)
		}
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		made.Run(ctx)
	})
	return made, log.times
}

func TestAKeyThatSucceedsIsLeftAlone(t *testing.T) {
	_, times := runFor(t, time.Hour, []string{"a", "a", "b"}, func(int, string) (time.Time, error) { return time.Time{}, nil })
	if len(times["a"]) != 1 || len(times["b"]) != 1 {
		t.Errorf("syncs = %v, want one of each key", times)
	}
}

func TestARecheckComesAtItsTime(t *testing.T) {
	_, times := runFor(t, time.Hour, []string{"a"}, func(n int, _ string) (time.Time, error) {
		if n > 1 {
			return time.Time{}, nil
		}
		return time.Now().Add(90 * time.Second), nil
	})
	if len(times["a"]) != 2 || times["a"][1] != 90*time.Second {
		t.Errorf("syncs at %v, want the second after 90 s", times["a"])
	}
}

func TestErrorsBackOffUpTo30Seconds(t *testing.T) {
	_, times := runFor(t, 10*time.Minute, []string{"a"}, func(int, string) (time.Time, error) { return time.Time{}, errors.New("no") })
	at := times["a"]
	if len(at) < 20 || at[1] != 5*time.Millisecond {
		t.Fatalf("syncs at %v", at)
	}
	if pause := at[len(at)-1] - at[len(at)-2]; pause != maxBackoff {
		t.Errorf("the last pause was %s, want %s", pause, maxBackoff)
	}
}

func TestSuccessForgetsTheBackOff(t *testing.T) {
	_, times := runFor(t, time.Hour, []string{"a"}, func(n int, _ string) (time.Time, error) {
		switch n {
		case 1, 2, 3, 5:
			return time.Time{}, errors.New("no")
		case 4:
			return time.Now().Add(time.Minute), nil
		}
		return time.Time{}, nil
	})
	if at := times["a"]; len(at) != 6 || at[5]-at[4] != minBackoff {
		t.Errorf("syncs at %v, want the last %s after the one before", at, minBackoff)
	}
}

func TestAStaleViewIsNoFailure(t *testing.T) {
	_, times := runFor(t, time.Hour, []string{"a"}, func(n int, _ string) (time.Time, error) {
		if n <= 3 {
			return time.Time{}, ErrStale
		}
		return time.Time{}, nil
	})
	if at := times["a"]; len(at) != 4 || at[3] != 3*staleRecheck {
		t.Errorf("syncs at %v, want one every %s", at, staleRecheck)
	}
}

func TestAPanicStaysInsideItsKey(t *testing.T) {
	made, times := runFor(t, time.Minute, []string{"bad", "good"}, func(n int, key string) (time.Time, error) {
		if key == "bad" && n < 3 {
			panic("boom")
		}
		return time.Time{}, nil
	})
	if len(times["good"]) != 1 || len(times["bad"]) != 3 {
		t.Errorf("syncs = %v", times)
	}
	if n, last := made.Panics(); n != 2 || last != "bad" {
		t.Errorf("Panics = %d, %q", n, last)
	}
}

func TestAKeyIsNeverSyncedTwiceAtOnce(t *testing.T) {
	var mu sync.Mutex
	under := false
	_, times := runFor(t, time.Minute, []string{"a"}, func(n int, _ string) (time.Time, error) {
		mu.Lock()
		if under {
			t.Error("two syncs of one key at once")
		}
		under = true
		mu.Unlock()
		<-time.After(time.Millisecond)
		mu.Lock()
		under = false
		mu.Unlock()
		if n < 5 {
			return time.Now(), nil
		}
		return time.Time{}, nil
	})
	if len(times["a"]) != 5 {
		t.Errorf("%d syncs, want 5", len(times["a"]))
	}
}

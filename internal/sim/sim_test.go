package sim

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
)

func init() { klog.SetLogger(logr.Discard()) } // what libraries log

// setting reads a number from the environment: SIM_SEED, SIM_SEEDS, SIM_FROM.
func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q is no number", name, text)
	}
	return n
}

// report cuts the failure down, unless SIM_BRIEF is set: then whoever asks wants
// to know only that there is one.
func report(t *testing.T, r Result) {
	t.Helper()
	seed := r.Seed
	if os.Getenv("SIM_BRIEF") != "" {
		t.Errorf("seed %d: %s\nreplay: make sim SEED=%d", seed, r.Broken, seed)
		return
	}
	short := Minimise(Options{Seed: seed})
	t.Errorf("seed %d: %s\nreplay: make sim SEED=%d\n%s", seed, short.Broken, seed, strings.Join(short.Trace, "\n"))
}

// TestSeeds runs many worlds. SIM_SEED runs one, with its whole trace; SIM_PART only those
// that have the loops of a part.
func TestSeeds(t *testing.T) {
	if os.Getenv("SIM_SEED") != "" {
		replay(t, uint64(setting(t, "SIM_SEED", 0)))
		return
	}
	count, from := setting(t, "SIM_SEEDS", defaultSeeds()), setting(t, "SIM_FROM", 1)
	// A machine that is busy or slow runs fewer seeds, and says so.
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(setting(t, "SIM_SECONDS", 50))*time.Second)
	defer cancel()
	start := time.Now()
	var next, done, left, writes, failed atomic.Int64
	most := int64(3)
	if os.Getenv("SIM_BRIEF") != "" {
		most = 1
	}
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < int64(count) && failed.Load() < most && ctx.Err() == nil; n = next.Add(1) - 1 {
				r := Run(Options{Seed: uint64(from) + uint64(n), Part: os.Getenv("SIM_PART")})
				if r.Left {
					left.Add(1)
					continue
				}
				done.Add(1)
				writes.Add(int64(r.Writes))
				if r.Broken != "" {
					failed.Add(1)
					report(t, r)
				}
			}
		})
	}
	workers.Wait()
	took := time.Since(start)
	count -= int(left.Load())
	t.Logf("%d of %d seeds in %s, %.0f a second; %d writes by the loops", done.Load(), count,
		took.Round(time.Millisecond), float64(done.Load())/took.Seconds(), writes.Load())
	if done.Load() < int64(count) && failed.Load() == 0 {
		t.Logf("the time was up: %d seeds were left out", int64(count)-done.Load())
	}
	if failed.Load() == 0 && writes.Load() < done.Load()*10 {
		t.Errorf("%d seeds made only %d writes: the world stands still", done.Load(), writes.Load())
	}
}

// TestASeedAlwaysTellsTheSameStory: replay is worth nothing otherwise.
func TestASeedAlwaysTellsTheSameStory(t *testing.T) {
	for seed := range uint64(20) {
		first := Run(Options{Seed: seed, Trace: true})
		again := Run(Options{Seed: seed, Trace: true})
		if first.Broken != "" {
			t.Errorf("seed %d: %s", seed, first.Broken)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatalf("seed %d went two ways (-first +again):\n%.2000s", seed, diff)
		}
	}
}

func replay(t *testing.T, seed uint64) {
	r := Run(Options{Seed: seed, Trace: true})
	if r.Broken == "" {
		t.Logf("seed %d: every promise kept\n%s", seed, strings.Join(r.Trace, "\n"))
		return
	}
	report(t, r)
}

// defaultSeeds is fewer with the race detector, which makes a run some ten times
// as slow and has nothing to find in a world of one goroutine.
func defaultSeeds() int {
	if raced || testing.Short() {
		return 150
	}
	return 2000
}

package sim

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

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

func report(t *testing.T, seed uint64) {
	t.Helper()
	short := Minimise(Options{Seed: seed})
	t.Errorf("seed %d: %s\nreplay: make sim SEED=%d\n%s", seed, short.Broken, seed, strings.Join(short.Trace, "\n"))
}

// TestSeeds runs many worlds. SIM_SEED runs one, with its whole trace.
func TestSeeds(t *testing.T) {
	if os.Getenv("SIM_SEED") != "" {
		replay(t, uint64(setting(t, "SIM_SEED", 0)))
		return
	}
	count, from := setting(t, "SIM_SEEDS", defaultSeeds()), setting(t, "SIM_FROM", 1)
	var next, writes, failed atomic.Int64
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < int64(count) && failed.Load() < 3; n = next.Add(1) - 1 {
				r := Run(Options{Seed: uint64(from) + uint64(n)})
				writes.Add(int64(r.Writes))
				if r.Broken != "" {
					failed.Add(1)
					report(t, r.Seed)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d seeds, %d writes by the loops", count, writes.Load())
	if failed.Load() == 0 && writes.Load() < int64(count)*10 {
		t.Errorf("%d seeds made only %d writes: the world stands still", count, writes.Load())
	}
}

func replay(t *testing.T, seed uint64) {
	r := Run(Options{Seed: seed, Trace: true})
	if r.Broken == "" {
		t.Logf("seed %d: every promise kept\n%s", seed, strings.Join(r.Trace, "\n"))
		return
	}
	report(t, seed)
}

// defaultSeeds is fewer with the race detector, which makes a run some ten times
// as slow and has nothing to find in a world of one goroutine.
func defaultSeeds() int {
	if raced || testing.Short() {
		return 150
	}
	return 2000
}

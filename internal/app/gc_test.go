package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

const mb = 1 << 20

func TestBusyIsWhereMuchIsMadeForWhatIsLive(t *testing.T) {
	for sentence, c := range map[string]struct {
		collection
		want bool
	}{
		"nothing is known":                 {collection{}, false},
		"at rest, each two minutes":        {collection{100 * mb, 60 * mb, 2 * time.Minute}, false},
		"a few Pods":                       {collection{100 * mb, 60 * mb, 2 * time.Second}, false},
		"thousands of Pods":                {collection{100 * mb, 60 * mb, time.Second / 2}, true},
		"the same, collected less often":   {collection{100 * mb, 150 * mb, time.Second}, true},
		"as much for what is live as ever": {collection{1000 * mb, 600 * mb, 2 * time.Second}, false},
	} {
		if got := c.isBusy(); got != c.want {
			t.Errorf("%s: busy is %v, want %v", sentence, got, c.want)
		}
	}
}

func TestGarbagePilesUpWhileThereIsRoom(t *testing.T) {
	for _, c := range []struct {
		live, room uint64
		want       int
	}{
		{0, 400 * mb, gcAtRest},
		{100 * mb, 400 * mb, gcBusy},
		{160 * mb, 400 * mb, gcBusy},
		{200 * mb, 400 * mb, 100},
		{250 * mb, 400 * mb, gcAtRest},
		{390 * mb, 400 * mb, gcAtRest},
		{1000 * mb, 400 * mb, gcAtRest},
		{100 * mb, 64 * mb, gcAtRest}, // a machine of half a gigabyte
		{100 * mb, 190 * mb, 90},
	} {
		if got := busyPercent(c.live, c.room); got != c.want {
			t.Errorf("%d MiB of %d MiB: %d %%, want %d %%", c.live/mb, c.room/mb, got, c.want)
		}
	}
}

func TestEachCollectionIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := collections(ctx)
	for i := range 3 {
		runtime.GC()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatalf("collection %d was not told", i)
		}
	}
}

func TestGarbageIsCollectedAsOftenAsBeforeAtRest(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tuneGC(ctx)
	if got := debug.SetGCPercent(gcAtRest); got != gcAtRest {
		t.Errorf("%d %%, want %d %%", got, gcAtRest)
	}
	if limit := memoryLimit(); limit < 256<<20 || limit > 1<<50 {
		t.Errorf("the machine has %d bytes", limit)
	}
}

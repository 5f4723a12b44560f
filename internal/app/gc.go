package app

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much garbage may pile up for each live byte, in percent. At rest less than Go's own
// 100: users of small machines miss memory more than a tenth of the processor time. Where
// thousands of Pods come and go, collecting at that pace takes a third of it, so then it is
// more, while the heap is small: 5,000 Pods are to fit into 600 MB all the time.
const (
	gcAtRest = 60
	gcBusy   = 150
	// busyPace is how many collections a second the garbage of a busy mend would take at
	// rest's percentage.
	busyPace = 1.0
	// gcRestAfter is how long a slower pace ends what was busy.
	gcRestAfter = 5 * time.Second
	// A busy heap may fill gcRoom bytes, and no more than one of gcShare parts of the
	// machine's memory.
	gcRoom  = 400 << 20
	gcShare = 8
)

// collection is what is known of the memory when a collection has ended. Sizes are in bytes.
type collection struct {
	live  uint64
	made  uint64        // since the one before
	since time.Duration // it ended
}

// isBusy says whether garbage is made so fast that it is worth more room.
func (c collection) isBusy() bool {
	if c.live == 0 || c.since <= 0 {
		return false
	}
	return float64(c.made)/c.since.Seconds() >= busyPace*float64(c.live)*gcAtRest/100
}

// busyPercent is how much garbage may pile up until the next collection, in percent of
// what is live, when the heap may fill room.
func busyPercent(live, room uint64) int {
	if live == 0 || live >= room {
		return gcAtRest
	}
	return int(max(gcAtRest, min(gcBusy, 100*(room-live)/live)))
}

// tuneGC sets how often garbage is collected, until ctx ends, unless the environment's
// GOGC does.
func tuneGC(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(gcAtRest)
	go followGC(ctx, collections(ctx), min(memoryLimit()/gcShare, gcRoom))
}

// followGC sets the percentage anew after each collection of a busy time, and once that is
// over.
func followGC(ctx context.Context, ended <-chan struct{}, room uint64) {
	percent := gcAtRest
	set := func(wanted int) {
		if wanted != percent {
			percent = wanted
			debug.SetGCPercent(percent)
		}
	}
	_, made := heap()
	last := time.Now()
	var rest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest:
			rest = nil
			set(gcAtRest)
			debug.FreeOSMemory() // what was needed for a while only
		case <-ended:
			before, now := made, time.Now()
			var live uint64
			live, made = heap()
			busy := collection{live: live, made: made - before, since: now.Sub(last)}.isBusy()
			last = now
			if busy {
				rest = time.After(gcRestAfter)
			}
			if rest != nil {
				set(busyPercent(live, room))
			}
		}
	}
}

// collections tells of the end of each collection, until ctx ends.
func collections(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{}, 1)
	type mark struct{ _ *byte } // with a pointer, or it would share its block with others
	var leave func()
	leave = func() {
		runtime.SetFinalizer(&mark{}, func(*mark) {
			if ctx.Err() != nil {
				return
			}
			select {
			case ended <- struct{}{}:
			default:
			}
			leave()
		})
	}
	leave()
	return ended
}

// heap is how many bytes were live at the last collection, and were allocated since the
// start.
func heap() (live, made uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}

package loop

import (
	"sync"
	"time"
)

// Anchor is a time that was written down, and the same moment with a reading of this
// process's monotonic clock: what is counted from At does not follow when the wall
// clock is set. The zero Anchor is of no time.
type Anchor struct{ Written, At time.Time }

// Of is the moment that was written down as t: anchored if it is the Anchor's own.
func (a Anchor) Of(t time.Time) time.Time {
	if a.Written.Equal(t) && !a.At.IsZero() {
		return a.At
	}
	return t
}

// Anchors remember one time of each key from when it was first seen. The zero value is
// empty; its methods may be called from any goroutine.
type Anchors struct {
	mu    sync.Mutex
	known map[string]Anchor
}

// Anchor is that of key's present time, as first seen. A time to come, which only a
// clock that was set back leaves, counts from now.
func (a *Anchors) Anchor(key string, written, now time.Time) Anchor {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known, ok := a.known[key]; ok && known.Written.Equal(written) {
		return known
	}
	if a.known == nil {
		a.known = map[string]Anchor{}
	}
	// Add keeps now's monotonic reading; written has none.
	made := Anchor{Written: written, At: now.Add(min(written.Sub(now), 0))}
	a.known[key] = made
	return made
}

// Forget drops what is known of key.
func (a *Anchors) Forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, key)
}

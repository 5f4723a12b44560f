package loop

import (
	"testing"
	"time"
)

func TestAnAnchorKeepsTheMomentAsFirstSeen(t *testing.T) {
	var anchors Anchors
	now := time.Now()
	written := now.Add(-time.Minute).Truncate(time.Second) // as the API keeps it
	first := anchors.Anchor("a", written, now)
	if got := now.Sub(first.At); got < time.Minute || got > time.Minute+time.Second {
		t.Errorf("the moment is %s ago, want a minute", got)
	}
	// Round takes the monotonic reading away: seen like that, the clock was set.
	jumped := now.Add(24 * time.Hour).Round(0)
	if again := anchors.Anchor("a", written, jumped); again != first {
		t.Errorf("after a jump it is %v, was %v", again, first)
	}
	if got := first.Of(written); got != first.At {
		t.Errorf("of its own time it gives %v, want %v", got, first.At)
	}
	other := written.Add(time.Second)
	if got := first.Of(other); got != other {
		t.Errorf("of another time it gives %v, want that", got)
	}
	if next := anchors.Anchor("a", other, now); !next.Written.Equal(other) {
		t.Errorf("another time is written down, and the anchor is %v", next)
	}
	if ahead := anchors.Anchor("b", now.Add(time.Hour).Round(0), now); ahead.At != now {
		t.Errorf("a time to come counts from %v, want %v", ahead.At, now)
	}
	anchors.Forget("a")
	if anew := anchors.Anchor("a", other, now.Add(time.Minute)); anew.At.Sub(now) > 0 {
		t.Errorf("forgotten, it is %v", anew)
	}
}

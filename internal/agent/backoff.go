package agent

import "time"

// Back-off of restarts and pulls: none before the first, then 10 s doubling to
// 5 min; forgotten after twice the longest wait, counted from the last start to
// the next end. A container that ran for 10 minutes has a clean record.
const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 5 * time.Minute
)

// Backoff is the wait that the next repetition is due. The zero value is none.
type Backoff struct {
	Delay time.Duration
	Since time.Time // when it was last raised
}

// expired says whether an end at that time starts a new record.
func (b Backoff) expired(end time.Time) bool {
	return b.Delay == 0 || end.Sub(b.Since) > 2*maxBackoff
}

// until is the earliest time to repeat what ended at that time; zero if at once.
func (b Backoff) until(end time.Time) time.Time {
	if b.expired(end) {
		return time.Time{}
	}
	return end.Add(b.Delay)
}

// raised is the back-off after a repetition at now of what ended at end.
func (b Backoff) raised(end, now time.Time) Backoff {
	if b.expired(end) {
		return Backoff{Delay: firstBackoff, Since: now}
	}
	return Backoff{Delay: min(2*b.Delay, maxBackoff), Since: now}
}

// retryDelay is the wait after the n-th failure in a row (from 1) of a step that
// should simply work: 0.5 s doubling to 10 s. Upstream waits 10 s or longer; an
// obstacle that is gone must not be waited out.
func retryDelay(n int) time.Duration {
	return min(500*time.Millisecond<<min(n-1, 5), 10*time.Second)
}

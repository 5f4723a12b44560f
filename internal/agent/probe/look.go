package probe

import "time"

// firstLook is the distance from a failed first attempt to the first look ahead
// of the period; each further one doubles it. With a period of 10 s there are
// eight: after 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 6.35 s and no later one.
const firstLook = 50 * time.Millisecond

// look is a worker's state of looking ahead of its period.
type look struct {
	at    time.Time     // when it was last looked
	pause time.Duration // from there to the next look
	next  bool          // the planned attempt is a look
	under bool          // the attempt under way is a look
}

// looksAhead says whether the probe may be looked at between its periods: only
// while nothing depends on a failure of it.
func (w *worker) looksAhead() bool {
	return w.kind != Liveness && w.spec.Exec == nil && w.tally.settled != Success && w.tally.last != Success
}

// planLook returns the time of the next attempt: regular, or that of a look that
// comes before it.
func (w *worker) planLook(regular time.Time) time.Time {
	w.look.next = false
	if !w.looksAhead() {
		return regular
	}
	from := w.look.at
	if from.Before(w.last) {
		from = w.last
	}
	pause := max(w.look.pause, firstLook)
	at := from.Add(pause)
	if !at.Before(regular) {
		w.look.pause = period(w.spec) // the looks are over
		return regular
	}
	w.look.next, w.look.pause = true, 2*pause
	return at
}

// begin notes that the planned attempt begins. A look does not move the period.
func (w *worker) begin(now time.Time) {
	w.look.under, w.look.next = w.look.next, false
	if w.look.under {
		w.look.at = now
		return
	}
	w.last = now
}

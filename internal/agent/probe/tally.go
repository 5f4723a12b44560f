package probe

// tally counts attempts against the thresholds of a probe. It is a value: add
// returns the next one.
type tally struct {
	last    Result // of the last attempt
	run     int    // how many attempts in a row had it
	settled Result // what the thresholds made of it; Unknown before the first
}

// add counts an attempt. Changed reports whether the settled result is new. An
// attempt that could not be made (Unknown) counts for nothing, as with kubelet.
func (t tally) add(result Result, successes, failures int32) (next tally, changed bool) {
	if result == Unknown {
		return t, false
	}
	if t.last == result {
		t.run++
	} else {
		t.last, t.run = result, 1
	}
	threshold := failures
	if result == Success {
		threshold = successes
	}
	if t.run < int(threshold) || t.settled == result {
		return t, false
	}
	t.settled = result
	return t, true
}

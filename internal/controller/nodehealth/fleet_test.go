package nodehealth

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pulsed lets time pass with the loop running.
func pulsed(f *fleet, from, to time.Duration) {
	for at := from; at < to; at += pulseEvery {
		f.beat(after(at))
	}
}

func wantSilent(t *testing.T, f *fleet, at time.Duration, want bool) {
	t.Helper()
	if got := f.silenceOf("n", after(at)).isOver(after(at)); got != want {
		t.Errorf("silent after %v: %v, want %v", at, got, want)
	}
}

func TestNodeIsSilentWhenNothingChangedForTheGracePeriod(t *testing.T) {
	f := newFleet(start)
	f.sawNode(aNode("n"), nil, start)
	pulsed(f, 0, gracePeriod)
	wantSilent(t, f, gracePeriod-time.Second, false)
	wantSilent(t, f, gracePeriod, true)
}

func TestOnlyChangesAreSignsOfLife(t *testing.T) {
	for sentence, tc := range map[string]struct {
		sees   func(f *fleet, at time.Time)
		silent bool
	}{
		"a renewed lease":                  {func(f *fleet, at time.Time) { f.sawLease(aLease("n", 2), at) }, false},
		"a lease renewed into the past":    {func(f *fleet, at time.Time) { f.sawLease(aLease("n", -9999), at) }, false},
		"a lease renewed far ahead":        {func(f *fleet, at time.Time) { f.sawLease(aLease("n", 1<<40), at) }, false},
		"the same lease again":             {func(f *fleet, at time.Time) { f.sawLease(aLease("n", 1), at) }, true},
		"another node's lease":             {func(f *fleet, at time.Time) { f.sawLease(aLease("m", 2), at) }, true},
		"a new heartbeat":                  {func(f *fleet, at time.Time) { f.sawNode(aNode("n", beating(2)), nil, at) }, false},
		"the same heartbeat again":         {func(f *fleet, at time.Time) { f.sawNode(aNode("n", beating(1)), nil, at) }, true},
		"labels that somebody changed":     {func(f *fleet, at time.Time) { f.sawNode(aNode("n", beating(1), inZone("z")), nil, at) }, true},
		"our own word that it is unknown":  {func(f *fleet, at time.Time) { f.sawNode(aNode("n", beating(1), unknownByUs), nil, at) }, true},
		"a first lease, where it had none": {func(f *fleet, at time.Time) { f.sawLease(aLease("n", 2), at) }, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(start)
			f.sawNode(aNode("n", beating(1)), nil, start)
			f.sawLease(aLease("n", 1), start)
			pulsed(f, 0, 20*time.Second)
			tc.sees(f, after(20*time.Second))
			pulsed(f, 20*time.Second, 55*time.Second)
			wantSilent(t, f, 55*time.Second, tc.silent)
		})
	}
}

// An agent writes its Lease before its Node. Read again at the end of the silence, it
// is no news.
func TestLeaseOfBeforeTheNodeWasKnownIsNoSign(t *testing.T) {
	f := newFleet(start)
	lease := aLease("n", 1)
	if f.sawLease(lease, start) {
		t.Error("the Lease of a node that is not known counts")
	}
	f.sawNode(aNode("n"), lease, start)
	pulsed(f, 0, gracePeriod)
	if f.sawLease(lease, after(gracePeriod)) {
		t.Error("the Lease counts as renewed")
	}
	wantSilent(t, f, gracePeriod, true)
	if !f.sawLease(aLease("n", 2), after(gracePeriod)) {
		t.Error("a renewed Lease does not count")
	}
}

func unknownByUs(n *v1.Node) {
	ready := conditionOf(n, v1.NodeReady)
	ready.Status, ready.Reason, ready.LastTransitionTime = v1.ConditionUnknown, reasonStopped, metav1.Unix(99, 0)
}

// The process is stopped for ten minutes: nobody was silent, for all we know.
func TestTimeThatTheLoopDidNotRunCountsForNobody(t *testing.T) {
	f := newFleet(start)
	f.sawNode(aNode("n"), nil, start)
	pulsed(f, 0, 30*time.Second)
	woken := 10*time.Minute + 30*time.Second
	wantSilent(t, f, woken, false)
	pulsed(f, woken, woken+10*time.Second)
	wantSilent(t, f, woken+2*time.Second, false)
	pulsed(f, woken+10*time.Second, woken+20*time.Second)
	wantSilent(t, f, woken+20*time.Second, true)
}

func TestNodeThatNeverSpokeHasLonger(t *testing.T) {
	f := newFleet(start)
	f.sawNode(aNode("n", mute), nil, start)
	pulsed(f, 0, 60*time.Second)
	wantSilent(t, f, 59*time.Second, false)
	wantSilent(t, f, 60*time.Second, true)
}

func TestBrakeByHowManyNodesAreReady(t *testing.T) {
	const never = time.Duration(-1)
	for sentence, tc := range map[string]struct {
		ready, unready int
		full           bool
		next           time.Duration // until the second node's turn
	}{
		"one of two":                    {1, 1, false, evictEvery},
		"the only one":                  {0, 1, true, 0},
		"all of many":                   {0, 60, true, 0},
		"two of three are few":          {1, 2, false, evictEvery},
		"three of five is over the bar": {2, 3, false, never},
		"three of six is under it":      {3, 3, false, evictEvery},
		"most of a large zone":          {20, 40, false, evictSlowEvery},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(start)
			for i := range tc.ready {
				f.sawNode(aNode(fmt.Sprint("ready-", i)), nil, start)
			}
			for i := range tc.unready {
				f.sawNode(aNode(fmt.Sprint("unready-", i), saying(v1.NodeReady, v1.ConditionUnknown)), nil, start)
			}
			first := f.brakeFor("unready-0", start)
			if first.full != tc.full {
				t.Fatalf("brake %+v, want full %v", first, tc.full)
			}
			if tc.full {
				return
			}
			if tc.next == never {
				if !first.evictAt.IsZero() {
					t.Fatalf("may evict at %v, want never", first.evictAt)
				}
				return
			}
			if !first.evictAt.Equal(start) {
				t.Fatalf("first turn at %v, want at once", first.evictAt)
			}
			f.tookTurn("unready-0", start)
			if second := f.brakeFor("unready-1", after(time.Second)); !second.evictAt.Equal(after(tc.next)) {
				t.Errorf("second turn at %v, want after %v", second.evictAt, tc.next)
			}
		})
	}
}

func TestZonesAreBrakedApart(t *testing.T) {
	f := newFleet(start)
	for i := range 5 {
		f.sawNode(aNode(fmt.Sprint("a-", i), inZone("a"), saying(v1.NodeReady, v1.ConditionUnknown)), nil, start)
		f.sawNode(aNode(fmt.Sprint("b-", i), inZone("b")), nil, start)
	}
	if b := f.brakeFor("a-0", start); b.full || b.evictAt.IsZero() {
		t.Errorf("zone a is gone while b stands: %+v, want eviction", b)
	}
	f.sawNode(aNode("a-0", inZone("a")), nil, start)
	if b := f.brakeFor("a-1", start); b.full || !b.evictAt.IsZero() {
		t.Errorf("zone a is partly gone: %+v, want no eviction", b)
	}
	if b := f.brakeFor("b-1", start); b.evictAt.IsZero() {
		t.Errorf("zone b stands: %+v, want eviction", b)
	}
}

func TestNodesOutsideTheCountDoNotSetTheBrake(t *testing.T) {
	f := newFleet(start)
	f.sawNode(aNode("n", saying(v1.NodeReady, v1.ConditionUnknown)), nil, start)
	f.sawNode(aNode("control", func(n *v1.Node) { n.Labels[labelExcluded] = "" }), nil, start)
	if b := f.brakeFor("n", start); !b.full {
		t.Errorf("brake %+v, want full", b)
	}
}

// When the network comes back, one node is heard first. The others must not be
// called lost for the silence that was not theirs.
func TestReleasedBrakeGivesEveryNodeAFreshGracePeriod(t *testing.T) {
	f := newFleet(start)
	f.sawNode(aNode("n", saying(v1.NodeReady, v1.ConditionUnknown)), nil, start)
	f.sawNode(aNode("m", saying(v1.NodeReady, v1.ConditionUnknown)), nil, start)
	if b := f.brakeFor("n", start); !b.full {
		t.Fatalf("brake %+v, want full", b)
	}
	pulsed(f, 0, time.Minute)
	wantSilent(t, f, time.Minute, true)
	f.sawNode(aNode("m", beating(9)), nil, after(time.Minute))
	if b := f.brakeFor("n", after(time.Minute)); b.full {
		t.Fatalf("brake %+v, want it released", b)
	}
	wantSilent(t, f, time.Minute, false)
}

func TestForgottenNodeIsNew(t *testing.T) {
	f := newFleet(start)
	f.sawNode(aNode("n"), nil, start)
	f.announced("n")
	if !f.isAnnounced("n") || f.forget("n") != "uid-n" || f.forget("n") != "" {
		t.Error("the node was not known, or is still")
	}
	f.sawNode(aNode("n"), nil, start)
	if f.isAnnounced("n") {
		t.Error("a node that came back is not announced again")
	}
}

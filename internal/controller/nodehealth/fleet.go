package nodehealth

import (
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/node/topology"
)

// Upstream's numbers.
const (
	gracePeriod    = 50 * time.Second
	startupPeriod  = 60 * time.Second // for a node that never said anything
	evictEvery     = 10 * time.Second
	evictSlowEvery = 100 * time.Second
	largeZone      = 50   // nodes; a zone of more is evicted slowly instead of not at all
	partialShare   = 0.55 // of a zone's nodes, when at least partialCount
	partialCount   = 3
)

// pulseEvery is how often the loop notices that it runs. A gap of more than two
// pulses is time in which we cannot have heard anyone.
const pulseEvery = 5 * time.Second

// labelExcluded keeps a node out of the brake's count.
const labelExcluded = "node.kubernetes.io/exclude-disruption"

// fleet is the memory of all nodes: when each was last heard, and how the zones
// stand. Its times are readings of one monotonic clock. It may be used from any
// goroutine.
type fleet struct {
	mu        sync.Mutex
	signs     map[string]*sign
	turns     map[string]time.Time // by zone: when the last node was tainted for eviction
	pulse     time.Time
	disrupted bool // no zone had a Ready node when last looked at
}

// sign is what a node last let us see, and when.
type sign struct {
	seen      time.Time
	renewed   *metav1.MicroTime // the Lease's, as its node wrote it
	heartbeat metav1.Time       // of the Ready condition, likewise
	hasReady  bool
	ready     bool
	zone      string
	excluded  bool
	uid       types.UID
	announced bool // people were told that it is watched
}

func newFleet(now time.Time) *fleet {
	return &fleet{signs: map[string]*sign{}, turns: map[string]time.Time{}, pulse: now}
}

// change tells what an observation altered.
type change struct {
	counts bool // the brake may have to be set anew: a node more, or Ready or not
	isSign bool // the node itself has been heard
}

// sawNode takes a node's own words into account. lease is the node's in the cache,
// or nil: an agent writes it before its Node, and what was renewed before the node
// was known is no sign of life when it is looked at again.
func (f *fleet) sawNode(node *v1.Node, lease *coordination.Lease, now time.Time) change {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awake(now)
	s, known := f.signs[node.Name]
	if !known {
		s = &sign{seen: now}
		if lease != nil {
			s.renewed = lease.Spec.RenewTime
		}
		f.signs[node.Name] = s
	}
	was := *s
	s.uid = node.UID
	s.zone = topology.GetZoneKey(node)
	_, s.excluded = node.Labels[labelExcluded]
	ready := conditionOf(node, v1.NodeReady)
	s.hasReady = ready != nil
	s.ready = ready != nil && ready.Status == v1.ConditionTrue
	var c change
	if s.hasReady && !isOurWord(ready) && (!was.hasReady || !ready.LastHeartbeatTime.Equal(&was.heartbeat)) {
		s.seen, s.heartbeat, c.isSign = now, ready.LastHeartbeatTime, true
	}
	c.counts = !known || s.ready != was.ready || s.zone != was.zone || s.excluded != was.excluded
	return c
}

// sawLease notes a renewal and says whether it is one. Only nodes that are known
// count.
func (f *fleet) sawLease(lease *coordination.Lease, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awake(now)
	s := f.signs[lease.Name]
	if s == nil || lease.Spec.RenewTime == nil || s.renewed != nil && s.renewed.Equal(lease.Spec.RenewTime) {
		return false
	}
	s.renewed, s.seen = lease.Spec.RenewTime, now
	return true
}

// forget forgets a node and returns its UID, or "" when it was not known.
func (f *fleet) forget(name string) types.UID {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.signs[name]
	if s == nil {
		return ""
	}
	delete(f.signs, name)
	return s.uid
}

func (f *fleet) isAnnounced(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.signs[name]
	return s == nil || s.announced
}

func (f *fleet) announced(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.signs[name]; s != nil {
		s.announced = true
	}
}

// beat is the pulse; it also serves every other method.
func (f *fleet) beat(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awake(now)
}

// awake moves every sign on by the time during which the process did not run.
func (f *fleet) awake(now time.Time) {
	if gap := now.Sub(f.pulse); gap > 2*pulseEvery {
		for _, s := range f.signs {
			s.seen = s.seen.Add(gap - pulseEvery)
		}
	}
	f.pulse = now
}

// silence is how long a node has been silent and may be.
type silence struct {
	since time.Time
	grace time.Duration
}

func (s silence) ends() time.Time         { return s.since.Add(s.grace) }
func (s silence) isOver(t time.Time) bool { return !t.Before(s.ends()) }

// silenceOf says since when the node has not been heard, at the time now.
func (f *fleet) silenceOf(name string, now time.Time) silence {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awake(now)
	s := f.signs[name]
	if s == nil {
		return silence{since: now, grace: gracePeriod}
	}
	if !s.hasReady {
		return silence{since: s.seen, grace: startupPeriod}
	}
	return silence{since: s.seen, grace: gracePeriod}
}

// brakeFor sets the brake for the node, at the time now. When nodes come back
// after none was Ready, all get a fresh grace period: those that have not been
// heard yet were kept from us by the same fault.
func (f *fleet) brakeFor(name string, now time.Time) brake {
	f.mu.Lock()
	defer f.mu.Unlock()
	total, unready := map[string]int{}, map[string]int{}
	for _, s := range f.signs {
		if s.excluded {
			continue
		}
		total[s.zone]++
		if !s.ready {
			unready[s.zone]++
		}
	}
	disrupted := len(total) > 0
	for zone := range total {
		disrupted = disrupted && unready[zone] == total[zone]
	}
	if f.disrupted && !disrupted {
		for _, s := range f.signs {
			s.seen = now
		}
	}
	f.disrupted = disrupted
	if disrupted {
		return brake{full: true}
	}
	zone := ""
	if s := f.signs[name]; s != nil {
		zone = s.zone
	}
	every := evictionPace(unready[zone], total[zone])
	if every == 0 {
		return brake{}
	}
	at := now
	if last, ok := f.turns[zone]; ok && last.Add(every).After(now) {
		at = last.Add(every)
	}
	return brake{evictAt: at}
}

// evictionPace is the least time between two nodes of a zone, or 0 for never. A
// zone without any Ready node, while others have some, is truly gone.
func evictionPace(unready, total int) time.Duration {
	isPartial := unready < total && unready >= partialCount && float64(unready)/float64(total) >= partialShare
	switch {
	case !isPartial:
		return evictEvery
	case total > largeZone:
		return evictSlowEvery
	default:
		return 0
	}
}

// tookTurn notes that the node was tainted for eviction.
func (f *fleet) tookTurn(name string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.signs[name]; s != nil {
		f.turns[s.zone] = now
	}
}

// isOurWord says whether the condition was last written by this loop.
func isOurWord(c *v1.NodeCondition) bool {
	return c.Status == v1.ConditionUnknown && (c.Reason == reasonNever || c.Reason == reasonStopped)
}

func conditionOf(node *v1.Node, which v1.NodeConditionType) *v1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == which {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

package agent

import (
	"context"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
	"mend/internal/agent/status"
	"mend/internal/loop"
)

// pod is what the agent remembers of one Pod. All of it may be lost.
type pod struct {
	uid types.UID

	mu     sync.Mutex
	api    *v1.Pod // the newest object seen; never changed
	gone   bool
	orphan bool
	forgot bool

	// dirty: the runtime may hold something else than state says.
	dirty bool
	state podruntime.State

	refused      *status.Verdict
	volumesReady bool
	tornDown     bool
	endingSince  time.Time
	leftAt       time.Time
	images       map[string]podspec.Image
	failures     map[string]Failure
	restarts     map[string]Backoff
	pulls        map[string]Backoff // by image
	flights      map[string]*flight
	done         map[string]Action // what last succeeded, by lane
	probed       map[string]Probed
	told         map[string]bool      // notices
	status       *v1.PodStatus        // the last one generated
	endSeen      map[string]time.Time // when a container was first seen to have ended, by its ID
	exited       map[string]bool      // containers whose process is known to have ended, by their ID
	started      loop.Anchors         // the Pod's StartTime
	// ends are closed when a container has ended, by its ID.
	ends map[string]chan struct{}
}

type flight struct {
	Flight
	ctx       context.Context
	cancel    func()
	abandoned bool
}

func newPod(uid types.UID) *pod {
	return &pod{
		uid: uid, images: map[string]podspec.Image{}, failures: map[string]Failure{}, restarts: map[string]Backoff{},
		pulls: map[string]Backoff{}, flights: map[string]*flight{}, done: map[string]Action{}, probed: map[string]Probed{}, told: map[string]bool{},
		endSeen: map[string]time.Time{}, exited: map[string]bool{}, ends: map[string]chan struct{}{},
	}
}

// newer says whether obj is at least as new as what is known of the Pod.
func (p *pod) newer(obj *v1.Pod) bool {
	if p.api == nil {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(obj.ResourceVersion, p.api.ResourceVersion)
	return err != nil || order >= 0
}

// old is the status to go on from.
func (p *pod) old() v1.PodStatus {
	if p.status != nil {
		return *p.status
	}
	return p.api.Status
}

// flightsNow copies what is under way.
func (p *pod) flightsNow() map[string]Flight {
	out := make(map[string]Flight, len(p.flights))
	for lane, f := range p.flights {
		out[lane] = f.Flight
	}
	return out
}

// observed is everything a plan is made of. flights were copied before state was
// read from the runtime, so that what landed in between still counts as under way
// and is not done twice.
func (p *pod) observed(flights map[string]Flight, hostIPs []string, halt bool, attempts map[string]uint32, now time.Time) Observed {
	return Observed{
		Pod: p.api, Gone: p.gone, Orphan: p.orphan, Halt: halt, Runtime: p.state, Old: p.old(), HostIPs: hostIPs,
		LoggedAttempts: attempts, Refused: p.refused, VolumesReady: p.volumesReady, TornDown: p.tornDown,
		EndingSince: p.endingSince, LeftAt: p.leftAt, Images: maps.Clone(p.images), Failures: maps.Clone(p.failures),
		Restarts: maps.Clone(p.restarts), Flights: flights, Probes: maps.Clone(p.probed),
		Ends: maps.Clone(p.endSeen), Exited: maps.Clone(p.exited), Started: p.startedAt(now),
	}
}

// startedAt anchors the Pod's StartTime, from which its deadline counts.
func (p *pod) startedAt(now time.Time) loop.Anchor {
	start := p.old().StartTime
	if start.IsZero() {
		return loop.Anchor{}
	}
	return p.started.Anchor("", start.Time, now)
}

// noteContainers takes note of those that have ended, and drops memories of those
// that the runtime no longer holds. Callers hold p.mu.
func (p *pod) noteContainers(now time.Time) {
	p.tellEnds()
	held := map[string]bool{}
	for _, c := range p.state.Containers {
		held[c.ID] = true
		if _, seen := p.endSeen[c.ID]; !seen && c.Phase == podruntime.Exited {
			p.endSeen[c.ID] = now
		}
	}
	maps.DeleteFunc(p.probed, func(id string, _ Probed) bool { return !held[id] })
	maps.DeleteFunc(p.endSeen, func(id string, _ time.Time) bool { return !held[id] })
	maps.DeleteFunc(p.exited, func(id string, _ bool) bool { return !held[id] })
}

// endOf is when a container ended, by the clock of this process where it has seen
// the end: back-off must not follow jumps of the wall clock, which wrote FinishedAt.
func endOf(seen map[string]time.Time, c *podruntime.Container) time.Time {
	if at, ok := seen[c.ID]; ok {
		return at
	}
	return c.FinishedAt
}

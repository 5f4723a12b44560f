package agent

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
	"mend/internal/agent/status"
	"mend/internal/loop"
)

// Observed is everything a plan is made of: the Pod as the API has it, what the
// runtime holds of it, and what this agent remembers of its own steps. Nothing in
// it may be changed.
type Observed struct {
	// Pod is the newest object seen. For an orphan it is made up of labels.
	Pod *v1.Pod
	// Gone: the API has it no more. Orphan: this agent never saw it there.
	Gone, Orphan bool
	// Gated: a Pod that ends first leaves its Services' endpoints.
	Gated bool
	// Halt: the node stops; containers end, and the Pod stays as it is in the API.
	Halt    bool
	Runtime podruntime.State
	// Old is the status generated before, or the API's.
	Old         v1.PodStatus
	HostIPs     []string
	RuntimeName string
	// LoggedAttempts are restart counts to go on from where the runtime knows no
	// container of that name but logs of one exist.
	LoggedAttempts map[string]uint32

	// What follows may be lost in a crash at any time.

	Refused      *status.Verdict
	VolumesReady bool
	TornDown     bool
	EndingSince  time.Time // when it was first seen that the Pod ends
	LeftAt       time.Time // when requests no longer reached it; zero: they may
	Images       map[string]podspec.Image
	Failures     map[string]Failure // by lane
	Restarts     map[string]Backoff // by container name
	Flights      map[string]Flight  // by lane
	Probes       map[string]Probed  // by container ID
	// Ends are when containers were seen to have ended, by their ID.
	Ends map[string]time.Time
	// Exited are containers whose process has ended, by their ID; the runtime may not
	// say so yet.
	Exited map[string]bool
	// Started is the Pod's StartTime.
	Started loop.Anchor
}

// Failure is why the last try in a lane failed. Reason is empty where no waiting
// state comes of it.
type Failure struct {
	Reason  string
	Message string
	Image   string // for pulls: as the Pod writes it
	Count   int    // in a row
	At      time.Time
	RetryAt time.Time
}

// Flight is an action under way.
type Flight struct {
	Action Action
	Since  time.Time
}

// Result is what a probe says, after its thresholds.
type Result int

// Results of a probe. Unknown: it has not run often enough yet.
const (
	ResultUnknown Result = iota
	ResultSuccess
	ResultFailure
)

// Probed holds the results of one container's probes.
type Probed struct{ Startup, Liveness, Readiness Result }

// starting are the containers whose start is under way.
func (o Observed) starting() map[string]bool {
	names := map[string]bool{}
	for _, f := range o.Flights {
		if f.Action.Kind == StartContainer {
			names[f.Action.Container] = true
		}
	}
	return names
}

// inFlight says whether an action of one of these kinds is under way.
func (o Observed) inFlight(kinds ...Kind) bool {
	for _, f := range o.Flights {
		for _, k := range kinds {
			if f.Action.Kind == k {
				return true
			}
		}
	}
	return false
}

// health is what the probes say of each running container, by container ID.
// A container that this agent found running keeps what the API said of it until
// its probes speak.
func (o Observed) health() map[string]status.Health {
	all := map[string]status.Health{}
	for spec := range eachContainer(&o.Pod.Spec) {
		c := o.Runtime.Latest(spec.Name)
		if c == nil || c.Phase != podruntime.Running {
			continue
		}
		before := status.HealthIn(o.Old, c.ID)
		seen := o.Probes[c.ID]
		h := status.Health{Started: true, Ready: true}
		if spec.StartupProbe != nil {
			h.Started = says(seen.Startup, before.Started)
		}
		if spec.ReadinessProbe != nil {
			h.Ready = says(seen.Readiness, before.Ready)
		}
		h.Ready = h.Ready && !o.Exited[c.ID]
		all[c.ID] = h
	}
	return all
}

func says(r Result, otherwise bool) bool {
	switch r {
	case ResultSuccess:
		return true
	case ResultFailure:
		return false
	case ResultUnknown:
	}
	return otherwise
}

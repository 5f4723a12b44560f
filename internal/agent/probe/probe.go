package probe

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Kind is what a probe is for.
type Kind int

// The kinds of probes.
const (
	Startup Kind = iota
	Liveness
	Readiness
)

// String is the kind as messages have it: "Readiness".
func (k Kind) String() string {
	switch k {
	case Startup:
		return "Startup"
	case Liveness:
		return "Liveness"
	case Readiness:
		return "Readiness"
	default:
		return "UNKNOWN"
	}
}

// Result is what an attempt, or a probe after its thresholds, came to.
type Result int

// Unknown is the result of an attempt that could not be made; a settled result is
// never Unknown.
const (
	Unknown Result = iota
	Success
	Failure
)

// Reasons of events, as kubelet has them.
const (
	ReasonUnhealthy = "Unhealthy"
	ReasonWarning   = "ProbeWarning"
)

// Target is a container that runs. Pod and Container are read, never changed, and
// must not be changed while they are held.
type Target struct {
	Pod         *v1.Pod
	Container   *v1.Container
	ContainerID string // as ExecSync takes it
	PodIP       string
	HostIP      string // probed when PodIP is empty (a Pod on the host's network)
	StartedAt   time.Time
	// Started says that startup had succeeded before this Manager knew the
	// container (the agent was restarted): the startup probe is not run again.
	Started bool
}

// Observation is a settled result, or one attempt that did not succeed.
type Observation struct {
	PodUID      types.UID
	Container   string
	ContainerID string
	Kind        Kind
	Result      Result
	// Message is the event's text for an attempt ("Readiness probe failed: …");
	// for a settled result it is the output of the attempt that settled it.
	Message string
	// Reason of the event (ReasonUnhealthy, ReasonWarning); empty when settled.
	Reason string
	Probe  *v1.Probe
}

// Execer runs a command in a container. A code other than 0 is an error with
// ExitStatus() int (k8s.io/utils/exec.ExitError); a timeout is
// k8s.io/cri-client/pkg.ErrCommandTimedOut. RuntimeService of the CRI is one.
type Execer interface {
	ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
}

// Options configure a [Manager]. Execer is required for exec probes.
//
// OnChange and OnFailure are called from goroutines of the Manager, those of one
// probe in order, those of different probes at the same time. They must not block
// for long. One may still arrive while the container is being removed or replaced:
// the receiver compares ContainerID.
type Options struct {
	Execer Execer
	Clock  clock.WithTicker // default the real clock
	// OnChange hears of the first settled result of a probe and of each change.
	OnChange func(Observation)
	// OnFailure hears of every attempt that failed (Result Failure), could not be
	// made (Unknown), or succeeded with a warning (Success).
	OnFailure func(Observation)
	// Dial opens the connections of HTTP, TCP and gRPC probes; default the
	// network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Jitter gives a number in [0,1): the part of its period that a probe waits
	// first, when its container was there before the Manager. Default random.
	Jitter func() float64
	Log    *slog.Logger // default slog.Default()
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.OnChange == nil {
		o.OnChange = func(Observation) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(Observation) {}
	}
	if o.Dial == nil {
		o.Dial = dialNetwork
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"mend/internal/schedule"
)

var (
	_ internalapi.RuntimeService      = (*Runtime)(nil)
	_ internalapi.ImageManagerService = (*Runtime)(nil)
)

// firstPID lies above the largest pid that Linux ever hands out (2^22).
const firstPID = 1<<22 + 1

// Options configure a [Runtime]. The zero value is usable.
type Options struct {
	Clock     clock.WithTicker // default the real clock
	Behaviour *Behaviour       // default DefaultBehaviour()
	PodRange  netip.Prefix     // default 10.244.0.0/16
	Log       *slog.Logger     // default slog.Default()
}

// Runtime is the simulated runtime. Its methods may be called from any
// goroutine; those that take simulated time (a pull, a start, a stop) block for
// it and return early with the context's error.
type Runtime struct {
	clock    clock.WithTicker
	log      *slog.Logger
	schedule *schedule.Schedule
	boot     time.Time
	streams  streams

	mu            sync.Mutex
	behaviour     *Behaviour
	podRange      *addresses
	sandboxes     map[string]*sandbox
	containers    map[string]*container
	podSandboxes  byPod[*sandbox]
	podContainers byPod[*container]
	byAddress     map[netip.Addr]*sandbox
	onHost        map[*sandbox]struct{} // sandboxes on the host's network
	images        map[string]*image     // by full name
	listeners     map[*subscriber]struct{}
	serial        uint64
	lastPID       int
}

// New returns a runtime with no sandboxes and the behaviour's images. Nothing
// runs until it is used; [Runtime.Stop] ends what is then running.
func New(options Options) *Runtime {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Behaviour == nil {
		options.Behaviour = DefaultBehaviour()
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	r := &Runtime{
		clock:         options.Clock,
		log:           options.Log,
		schedule:      schedule.New(options.Clock),
		boot:          options.Clock.Now(),
		behaviour:     options.Behaviour,
		podRange:      newAddresses(options.PodRange),
		sandboxes:     map[string]*sandbox{},
		containers:    map[string]*container{},
		podSandboxes:  byPod[*sandbox]{},
		podContainers: byPod[*container]{},
		byAddress:     map[netip.Addr]*sandbox{},
		onHost:        map[*sandbox]struct{}{},
		images:        map[string]*image{},
		listeners:     map[*subscriber]struct{}{},
		lastPID:       firstPID,
	}
	for _, name := range options.Behaviour.Images {
		r.addImage(name)
	}
	return r
}

// SetBehaviour replaces the behaviour for pulls and containers from now on.
// Containers that exist keep what they were created with.
func (r *Runtime) SetBehaviour(behaviour *Behaviour) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behaviour = behaviour
	for _, name := range behaviour.Images {
		r.addImage(name)
	}
}

// Stop drops all timed behaviour and closes the streaming server. The state
// stays readable.
func (r *Runtime) Stop() {
	r.schedule.Stop()
	r.streams.close()
}

// Close does nothing: the interface means the client's connection, and an agent
// that closes it leaves the containers running. See [Runtime.Stop].
func (r *Runtime) Close(context.Context) error { return nil }

// Version names the runtime.
func (r *Runtime) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       "mend-sim",
		RuntimeVersion:    "1.0.0",
		RuntimeApiVersion: "v1",
	}, nil
}

// Status reports runtime and network as ready.
func (r *Runtime) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: true},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{}}},
		Features:        &runtimeapi.RuntimeFeatures{},
	}, nil
}

// UpdateRuntimeConfig accepts the Pod range; one already in use stays.
func (r *Runtime) UpdateRuntimeConfig(_ context.Context, config *runtimeapi.RuntimeConfig) error {
	text := config.GetNetworkConfig().GetPodCidr()
	if text == "" {
		return nil
	}
	within, err := netip.ParsePrefix(text)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "pod_cidr: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.podRange.used) == 0 {
		r.podRange = newAddresses(within)
	}
	return nil
}

// RuntimeConfig reports the cgroupfs driver.
func (r *Runtime) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
	}, nil
}

// CheckpointContainer is not simulated.
func (r *Runtime) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error {
	return unimplemented("CheckpointContainer")
}

// CheckpointPod is not simulated.
func (r *Runtime) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) error {
	return unimplemented("CheckpointPod")
}

// RestorePod is not simulated.
func (r *Runtime) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, unimplemented("RestorePod")
}

func unimplemented(method string) error {
	return status.Errorf(codes.Unimplemented, "the simulated runtime has no %s", method)
}

// newID returns 64 hex digits that no other call of this runtime returns, and
// that differ between runs: they depend on the time of New. Callers hold r.mu.
func (r *Runtime) newID() string {
	r.serial++
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%d/%d", r.behaviour.Seed, r.boot.UnixNano(), r.serial))
	return hex.EncodeToString(sum[:])
}

func (r *Runtime) newPID() int {
	r.lastPID++
	return r.lastPID
}

// pause blocks for d or until ctx ends.
func (r *Runtime) pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := r.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

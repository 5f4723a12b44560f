package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-client/pkg"

	"mend/internal/instance"
	"mend/internal/network"
	"mend/internal/runtime/containerd"
	"mend/internal/runtime/image"
)

// criTimeout bounds one CRI call that should be short; pulls and stops bring
// limits of their own.
const criTimeout = 2 * time.Minute

// host is what runs containers: the built-in containerd and the Pod network, or
// a runtime of the user's with a network of its own.
type host struct {
	p          *process
	supervisor *containerd.Supervisor // nil with --runtime-endpoint
	ended      atomic.Bool            // the supervision has; status asks at any time
	images     *image.Client
	network    *network.Network
	runtime    internalapi.RuntimeService
	puller     internalapi.ImageManagerService
	services   *services // nil without a Pod network of ours
}

func newHost(p *process) (machine, error) { return &host{p: p}, nil }

func containerdConfig(i instance.Instance, n *network.Network, p *process) containerd.Config {
	config := containerd.Config{DataDir: i.Dir, RunDir: i.RunDir(), InstanceID: i.ID, CgroupParent: i.CgroupParent(), Log: p.log}
	if n != nil {
		config.CNIConfDir = n.ConfDir
	}
	return config
}

func networkConfig(i instance.Instance, p *process) network.Config {
	config := network.Config{InstanceID: i.ID, DataDir: i.Dir, RunDir: i.RunDir(), Log: p.log}
	config.IPv6 = p.isDualStack()
	if p.serviceRange.IsValid() {
		config.Avoid = []netip.Prefix{p.serviceRange}
	}
	return config
}

// podRanges are the ranges of this node's Pods, IPv4 first.
func (h *host) podRanges() []string {
	ranges := []string{h.network.PodCIDR.String()}
	if h.network.PodCIDR6.IsValid() {
		ranges = append(ranges, h.network.PodCIDR6.String())
	}
	return ranges
}

// start brings the runtime up and connects to it.
func (h *host) start(ctx context.Context) error {
	endpoint := h.p.config.RuntimeEndpoint
	if endpoint == "" {
		if err := h.startBuiltin(ctx); err != nil {
			return err
		}
		endpoint = h.supervisor.Endpoint()
	}
	var err error
	if h.runtime, err = cri.NewRemoteRuntimeService(ctx, endpoint, criTimeout, nil, false); err != nil {
		return fmt.Errorf("container runtime at %s: %w", endpoint, err)
	}
	if h.supervisor != nil {
		h.runtime = h.supervisor.Removing(h.runtime)
	}
	if h.puller, err = cri.NewRemoteImageService(ctx, endpoint, criTimeout, nil, false); err != nil {
		return fmt.Errorf("image service at %s: %w", endpoint, err)
	}
	return h.reclaim(ctx)
}

// close shuts others out: of the run directory, and of the port on which a mend
// that was killed had served the samples, which anybody may have taken since.
func (h *host) close() error {
	run := h.p.instance.RunDir()
	if err := os.MkdirAll(run, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(run, 0o700); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(RegistryDir(h.p.instance), "docker.io"))
}

// reclaim frees the addresses of sandboxes that a kill left half made.
func (h *host) reclaim(ctx context.Context) error {
	if h.network == nil {
		return nil
	}
	sandboxes, err := h.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	live := make([]string, 0, len(sandboxes))
	for _, sandbox := range sandboxes {
		live = append(live, sandbox.Id)
	}
	return h.network.Reclaim(live)
}

func (h *host) startBuiltin(ctx context.Context) error {
	if err := h.close(); err != nil {
		return err
	}
	var err error
	if h.network, err = network.Setup(ctx, networkConfig(h.p.instance, h.p)); err != nil {
		return fmt.Errorf("Pod network: %w", err)
	}
	if h.supervisor, err = containerd.Start(ctx, containerdConfig(h.p.instance, h.network, h.p)); err != nil {
		return fmt.Errorf("container runtime: %w", err)
	}
	if h.images, err = image.Connect(h.supervisor.Endpoint()); err != nil {
		return err
	}
	bundle, err := containerd.Bundle()
	if err != nil {
		return err
	}
	if err := h.images.EnsureBuiltin(ctx, bundle.ID(), h.supervisor.OpenImages); err != nil {
		return err
	}
	mirror := image.Mirror{Client: h.images, RegistryDir: RegistryDir(h.p.instance), Log: h.p.log}
	h.p.nodes.run(func(ctx context.Context) {
		if err := mirror.Run(ctx); err != nil {
			h.p.log.Error("the mirror for the samples ended", "err", err)
		}
	})
	return nil
}

// leave ends the supervision; containerd and the containers go on.
func (h *host) leave() {
	if h.images != nil {
		_ = h.images.Close()
	}
	if h.supervisor != nil && !h.ended.Swap(true) {
		h.supervisor.Release()
	}
}

// hurry has containerd started now if it waits to be started again.
func (h *host) hurry(ctx context.Context) error {
	if h.supervisor == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	return h.supervisor.Hurry(ctx)
}

// end ends what carries Services, and containerd itself. The Pods must have ended.
func (h *host) end(ctx context.Context) error {
	return errors.Join(h.services.withdraw(ctx), h.endRuntime(ctx))
}

func (h *host) endRuntime(ctx context.Context) error {
	if h.supervisor == nil || h.ended.Swap(true) {
		return nil
	}
	err := h.supervisor.Stop(ctx)
	if h.images != nil {
		err = errors.Join(err, h.images.Close())
		h.images = nil
	}
	return errors.Join(err, network.Teardown(ctx, networkConfig(h.p.instance, h.p)))
}

func (h *host) describe(status *Status) {
	h.describeRuntime(status)
	h.services.describe(status)
}

func (h *host) describeRuntime(status *Status) {
	if h.supervisor == nil {
		status.Components = append(status.Components, ComponentStatus{Name: "container runtime", Healthy: true, Message: h.p.config.RuntimeEndpoint})
		return
	}
	if h.ended.Load() {
		status.Components = append(status.Components, ComponentStatus{Name: "containerd", Message: "mend is going down"})
		return
	}
	pid := h.supervisor.PID()
	message := fmt.Sprintf("pid %d, %d restarts", pid, h.supervisor.Restarts())
	if h.supervisor.Adopted() {
		message += ", adopted"
	}
	silence := h.supervisor.Silence()
	if silence > 0 {
		message += fmt.Sprintf(", has not answered for %s", silence.Round(time.Second))
	}
	status.Components = append(status.Components, ComponentStatus{Name: "containerd", Healthy: pid != 0 && silence == 0, Message: message})
	status.Memory["containerd"] = residentBytes(pid)
	status.Paths["runtime socket"] = h.supervisor.Socket()
	status.Paths["runtime programs"] = h.supervisor.BinDir()
}

// RegistryDir is where an instance's containerd reads per-registry settings.
func RegistryDir(i instance.Instance) string {
	return containerd.Config{DataDir: i.Dir}.RegistryDir()
}

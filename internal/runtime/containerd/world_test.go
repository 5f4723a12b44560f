package containerd_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	internalapi "k8s.io/cri-api/pkg/apis"

	"mend/internal/network"
	"mend/internal/runtime/containerd"
	"mend/internal/runtime/image"
)

// waitLimit bounds every wait of these tests; a loaded machine must not fail them.
const waitLimit = 60 * time.Second

// needRealContainers skips where containers cannot run. With CI=true that is a
// failure: a run that proves nothing must not look green.
func needRealContainers(t testing.TB) {
	t.Helper()
	var reason string
	switch _, err := containerd.Bundle(); {
	case err != nil:
		reason = err.Error()
	case os.Geteuid() != 0:
		reason = "real containers need root"
	default:
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// world is one instance on this machine, apart from every other.
type world struct {
	t       testing.TB
	id      string
	cfg     containerd.Config
	netCfg  network.Config
	net     *network.Network
	sup     *containerd.Supervisor
	runtime internalapi.RuntimeService
	images  internalapi.ImageManagerService
	builtin *image.Client
}

func newWorld(t testing.TB) *world {
	t.Helper()
	needRealContainers(t)
	var b [3]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(b[:])
	w := &world{t: t, id: id}
	data, run := filepath.Join(t.TempDir(), "data"), filepath.Join("/run/mend", id)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w.netCfg = network.Config{InstanceID: id, DataDir: data, RunDir: run, Log: log}
	w.cfg = containerd.Config{InstanceID: id, DataDir: data, RunDir: run, CgroupParent: "/mend-" + id, Log: log}
	t.Cleanup(w.purge)
	return w
}

func (w *world) purge() {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if w.sup != nil {
		if err := w.sup.Stop(ctx); err != nil {
			w.t.Errorf("stop: %v", err)
		}
		w.sup = nil
	}
	err := errors.Join(containerd.Purge(ctx, w.cfg), network.Teardown(ctx, w.netCfg))
	if err != nil {
		w.t.Errorf("purge: %v", err)
	}
}

func (w *world) context() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), waitLimit)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) start() {
	w.t.Helper()
	ctx := w.context()
	var err error
	if w.net, err = network.Setup(ctx, w.netCfg); err != nil {
		w.t.Fatal(err)
	}
	w.cfg.CNIConfDir = w.net.ConfDir
	if w.sup, err = containerd.Start(ctx, w.cfg); err != nil {
		w.t.Fatal(err)
	}
	w.connect()
}

func (w *world) connect() {
	w.t.Helper()
	ctx := w.context()
	var err error
	if w.runtime, err = criclient.NewRemoteRuntimeService(ctx, w.sup.Endpoint(), waitLimit, nil, false); err != nil {
		w.t.Fatal(err)
	}
	if w.images, err = criclient.NewRemoteImageService(ctx, w.sup.Endpoint(), waitLimit, nil, false); err != nil {
		w.t.Fatal(err)
	}
	if w.builtin, err = image.Connect(w.sup.Endpoint()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.builtin.Close() })
}

func (w *world) importBuiltin() {
	w.t.Helper()
	open := func() (io.ReadCloser, error) { return os.Open(filepath.Join(w.sup.BinDir(), containerd.ImagesFile)) }
	if err := w.builtin.EnsureBuiltin(w.context(), filepath.Base(w.sup.BinDir()), open); err != nil {
		w.t.Fatal(err)
	}
}

// pod is one sandbox with one web container.
type pod struct {
	sandbox, container, ip string
	config                 *runtimeapi.PodSandboxConfig
}

func (w *world) sandboxConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name + "-uid"},
		Hostname:     name,
		LogDirectory: filepath.Join(w.cfg.DataDir, "pod-logs", name),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: w.cfg.CgroupParent + "/pod-" + name},
	}
}

// runPod makes the three calls; change may alter the container first.
func (w *world) runPod(config *runtimeapi.PodSandboxConfig, img string, change ...func(*runtimeapi.ContainerConfig)) pod {
	w.t.Helper()
	ctx := w.context()
	p := pod{config: config}
	var err error
	if p.sandbox, err = w.runtime.RunPodSandbox(ctx, config, ""); err != nil {
		w.t.Fatal(err)
	}
	container := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
		Image:    &runtimeapi.ImageSpec{Image: img},
		LogPath:  "web.log",
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}
	for _, f := range change {
		f(container)
	}
	if p.container, err = w.runtime.CreateContainer(ctx, p.sandbox, container, config); err != nil {
		w.t.Fatal(err)
	}
	if err := w.runtime.StartContainer(ctx, p.container); err != nil {
		w.t.Fatal(err)
	}
	status, err := w.runtime.PodSandboxStatus(ctx, p.sandbox, false)
	if err != nil {
		w.t.Fatal(err)
	}
	p.ip = status.GetStatus().GetNetwork().GetIp()
	return p
}

// get asks until an answer with status 200 comes, and returns its body.
func (w *world) get(host, port, path string) string {
	w.t.Helper()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last error
	var body string
	w.eventually("an answer from "+host, func() bool {
		resp, err := client.Get("http://" + net.JoinHostPort(host, port) + path)
		if err != nil {
			last = err
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		body, last = string(b), err
		return err == nil && resp.StatusCode == http.StatusOK
	}, &last)
	return body
}

// eventually waits for a condition under the general limit.
func (w *world) eventually(what string, holds func() bool, last *error) {
	w.t.Helper()
	deadline := time.NewTimer(waitLimit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			if last != nil && *last != nil {
				w.t.Fatalf("waited %v for %s: %v", waitLimit, what, *last)
			}
			w.t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}

func (w *world) pidOf(container string) int {
	w.t.Helper()
	pid, err := w.containerPID(container)
	if err != nil {
		w.t.Fatal(err)
	}
	return pid
}

func (w *world) containerPID(container string) (int, error) {
	status, err := w.runtime.ContainerStatus(w.context(), container, true)
	if err != nil {
		return 0, err
	}
	var pid int
	if _, err := fmt.Sscanf(between(status.GetInfo()["info"], `"pid":`, ","), "%d", &pid); err != nil {
		return 0, fmt.Errorf("no pid in the container's status: %w", err)
	}
	return pid, nil
}

// between is the text after one mark and before the next other.
func between(s, after, before string) string {
	_, rest, _ := strings.Cut(s, after)
	text, _, _ := strings.Cut(rest, before)
	return text
}

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
	"slices"
	"strconv"
	"strings"
	"syscall"
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

func (w *world) runPod(config *runtimeapi.PodSandboxConfig, img string) pod {
	w.t.Helper()
	ctx := w.context()
	p := pod{config: config}
	var err error
	if p.sandbox, err = w.runtime.RunPodSandbox(ctx, config, ""); err != nil {
		w.t.Fatal(err)
	}
	p.container, err = w.runtime.CreateContainer(ctx, p.sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
		Image:    &runtimeapi.ImageSpec{Image: img},
		LogPath:  "web.log",
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}, config)
	if err != nil {
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

func TestARealPodServes(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	config := w.sandboxConfig("one")
	config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: freePort(t)}}
	p := w.runPod(config, "mend.local/web:1.0")

	if got, want := w.get(p.ip, "8080", "/"), "web 1.0 on one\n"; got != want {
		t.Errorf("the Pod answered %q, want %q", got, want)
	}
	hostPort := strconv.Itoa(int(config.PortMappings[0].HostPort))
	for _, host := range []string{"127.0.0.1", w.net.Gateway.String()} {
		if got, want := w.get(host, hostPort, "/hostname"), "one\n"; got != want {
			t.Errorf("the host port at %s answered %q, want %q", host, got, want)
		}
	}
	// The Pod reaches the host, another Pod, and itself through its host port.
	other := w.runPod(w.sandboxConfig("two"), "mend.local/web:2.0")
	for url, want := range map[string]string{
		"http://" + net.JoinHostPort(other.ip, "80") + "/version":                    "2.0\n",
		"http://" + net.JoinHostPort(w.net.Gateway.String(), hostPort) + "/hostname": "one\n",
		"http://" + serveOnHost(t, w.net.Gateway.String()):                           "the host\n",
	} {
		out, errOut, err := w.runtime.ExecSync(w.context(), p.container, []string{"curl", "-m", "10", url}, waitLimit)
		if err != nil || string(out) != want {
			t.Errorf("from the Pod, %s: got %q, %q, %v; want %q", url, out, errOut, err, want)
		}
	}
	log, err := os.ReadFile(filepath.Join(config.LogDirectory, "web.log"))
	if err != nil || !strings.Contains(string(log), "GET / 200") {
		t.Errorf("the container's log (error %v) lacks the request:\n%s", err, log)
	}
}

// freePort is a port that nobody listens on right now.
func freePort(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// serveOnHost answers "the host" on an address of this machine, and returns host:port.
func serveOnHost(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the host") })}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

func TestTheNextMendAdoptsTheRunningContainers(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	p := w.runPod(w.sandboxConfig("one"), "mend.local/web:1.0")
	containerdPID, webPID := w.sup.PID(), w.pidOf(p.container)
	w.sup.Release()

	w.start() // as a new mend does
	if !w.sup.Adopted() || w.sup.PID() != containerdPID {
		t.Errorf("the new supervisor watches process %d (adopted: %v), want the earlier %d", w.sup.PID(), w.sup.Adopted(), containerdPID)
	}
	if got := w.pidOf(p.container); got != webPID {
		t.Errorf("the container's process is %d, want the earlier %d", got, webPID)
	}

	// The record lost, as when mend is killed between starting containerd and writing.
	w.sup.Release()
	if err := os.Remove(filepath.Join(w.cfg.RunDir, "containerd.json")); err != nil {
		t.Fatal(err)
	}
	w.start()
	if got := w.pidOf(p.container); got != webPID {
		t.Errorf("without a record, the container's process is %d, want the earlier %d", got, webPID)
	}
	w.get(p.ip, "8080", "/")
}

func TestOnlyOneMendWatchesAnInstance(t *testing.T) {
	w := newWorld(t)
	w.start()
	_, err := containerd.Start(w.context(), w.cfg)
	if err == nil || !strings.Contains(err.Error(), "watched by another mend") {
		t.Errorf("a second start gave %v, want an error that names the other mend", err)
	}
}

func TestAKilledContainerdIsStartedAgainAndContainersLive(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	p := w.runPod(w.sandboxConfig("one"), "mend.local/web:1.0")
	for round, adopt := range []bool{false, true} {
		if adopt {
			w.sup.Release()
			w.start()
		}
		containerdPID, webPID, before := w.sup.PID(), w.pidOf(p.container), w.sup.Restarts()
		if err := syscall.Kill(containerdPID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.eventually("containerd to run again", func() bool { return w.sup.Restarts() == before+1 }, nil)
		if w.sup.PID() == containerdPID {
			t.Errorf("round %d: containerd still has process id %d", round, containerdPID)
		}
		w.connect()
		if got := w.pidOf(p.container); got != webPID {
			t.Errorf("round %d: the container's process is %d, want the earlier %d", round, got, webPID)
		}
		w.get(p.ip, "8080", "/")
	}
}

func TestStopAndPurgeLeaveNothing(t *testing.T) {
	for name, stopPods := range map[string]bool{"in order": true, "with Pods that still run": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := hostState(t, w.id, w.cfg.DataDir)
			w.start()
			w.importBuiltin()
			pods := []pod{
				w.runPod(w.sandboxConfig("one"), "mend.local/web:1.0"),
				w.runPod(w.sandboxConfig("two"), "mend.local/web:2.0"),
			}
			pids := []int{w.pidOf(pods[0].container), w.pidOf(pods[1].container)}
			running := hostState(t, w.id, w.cfg.DataDir)
			for _, kind := range []string{"process", "mount", "link", "route", "table", "cgroup", "file"} {
				if !slices.ContainsFunc(running, func(s string) bool { return strings.HasPrefix(s, kind+" ") }) {
					t.Errorf("the state of the host lists no %s of two running Pods: it would prove nothing", kind)
				}
			}
			if stopPods {
				if err := w.sup.StopPods(w.context(), 5*time.Second); err != nil {
					t.Error(err)
				}
			}
			w.purge()
			// What is not containerd's is its owner's to delete.
			if err := os.RemoveAll(w.cfg.DataDir); err != nil {
				t.Fatal(err)
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("the container's process %d is still there: %v", pid, err)
				}
			}
			nothingLeft(t, before, hostState(t, w.id, w.cfg.DataDir))
		})
	}
}

func TestPurgeSparesWhatIsMountedOrLinkedIn(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	precious := t.TempDir()
	file := filepath.Join(precious, "file")
	if err := os.WriteFile(file, []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := w.sandboxConfig("one")
	ctx := w.context()
	sandbox, err := w.runtime.RunPodSandbox(ctx, config, "")
	if err != nil {
		t.Fatal(err)
	}
	container, err := w.runtime.CreateContainer(ctx, sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
		Image:    &runtimeapi.ImageSpec{Image: "mend.local/web:1.0"},
		LogPath:  "web.log",
		Mounts:   []*runtimeapi.Mount{{HostPath: precious, ContainerPath: "/data"}},
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.runtime.StartContainer(ctx, container); err != nil {
		t.Fatal(err)
	}
	// A mount and a link that somebody put where Purge deletes.
	mounted := filepath.Join(w.cfg.RunDir, "mounted")
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(precious, mounted, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(w.cfg.DataDir, "containerd", "link")); err != nil {
		t.Fatal(err)
	}
	w.purge()
	if b, err := os.ReadFile(file); err != nil || string(b) != "keep me" {
		t.Errorf("the user's file reads %q, %v", b, err)
	}
	if _, err := os.Lstat(w.cfg.RunDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is still there: %v", err)
	}
}

// between is the text after one mark and before the next other.
func between(s, after, before string) string {
	_, rest, _ := strings.Cut(s, after)
	text, _, _ := strings.Cut(rest, before)
	return text
}

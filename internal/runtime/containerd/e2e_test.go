package containerd_test

import (
	"context"
	"errors"
	"fmt"
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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/network"
	"mend/internal/runtime/cleanup"
	"mend/internal/runtime/containerd"
)

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

func TestAContainerThatTakesTooMuchMemoryIsKilledForIt(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	for i := range 3 { // the kernel's notice and the exit race each other
		p := w.runPod(w.sandboxConfig(fmt.Sprintf("greedy-%d", i)), "mend.local/web:1.0", func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
		})
		w.get(p.ip, "8080", "/healthz")
		if resp, err := http.Post("http://"+net.JoinHostPort(p.ip, "8080")+"/leak?mb=500", "", nil); err == nil {
			resp.Body.Close()
		}
		var last *runtimeapi.ContainerStatus
		w.eventually("the container to be killed", func() bool {
			status, err := w.runtime.ContainerStatus(w.context(), p.container, false)
			if err != nil {
				t.Fatal(err)
			}
			last = status.GetStatus()
			return last.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
		}, nil)
		if last.GetReason() != "OOMKilled" || last.GetExitCode() != 137 {
			t.Errorf("it ended with %d, %q, want 137, OOMKilled", last.GetExitCode(), last.GetReason())
		}
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

func TestWhatCannotWorkIsSaidInOneLine(t *testing.T) {
	for name, tc := range map[string]struct {
		flags uintptr
		want  string
	}{
		"a file system without programs":  {syscall.MS_NOEXEC, "mounted noexec"},
		"a file system that is read only": {syscall.MS_RDONLY, "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if err := os.MkdirAll(w.cfg.DataDir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mount("tmpfs", w.cfg.DataDir, "tmpfs", tc.flags, ""); err != nil {
				t.Fatal(err)
			}
			defer syscall.Unmount(w.cfg.DataDir, syscall.MNT_DETACH)
			w.cfg.CNIConfDir = t.TempDir()
			_, err := containerd.Start(w.context(), w.cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the start gave %v, want one line with %q", err, tc.want)
			}
		})
	}
}

func TestAContainerdThatHangsIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	p := w.runPod(w.sandboxConfig("one"), "mend.local/web:1.0")
	stuck, webPID := w.sup.PID(), w.pidOf(p.container)
	w.sup.Release()
	if err := syscall.Kill(stuck, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.start()
	if w.sup.PID() == stuck {
		t.Error("the containerd that does not answer was adopted")
	}
	if got := w.pidOf(p.container); got != webPID {
		t.Errorf("the container's process is %d, want the earlier %d", got, webPID)
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

// Commands that were executed in a container end too, and are not told.
func TestTheEndOfAContainersProcessIsTold(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	told := make(chan string, 10)
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(w.context())
	go func() { ended <- w.sup.Exits(ctx, func(container string) { told <- container }) }()
	// Containers end until one is told of: nobody says when the stream has begun.
	killed := map[string]bool{}
	for i := 0; len(told) == 0; i++ {
		p := w.runPod(w.sandboxConfig(fmt.Sprintf("one-%d", i)), "mend.local/web:1.0")
		if _, _, err := w.runtime.ExecSync(w.context(), p.container, []string{"true"}, waitLimit); err != nil {
			t.Fatal(err)
		}
		killed[p.container] = true
		if err := syscall.Kill(w.pidOf(p.container), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.eventually("the container to have ended", func() bool {
			is, err := w.runtime.ContainerStatus(w.context(), p.container, false)
			return err == nil && is.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
		}, nil)
	}
	stop()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("the stream ended with %v", err)
	}
	close(told)
	for container := range told {
		if !killed[container] {
			t.Errorf("told of %s, which was not killed", container)
		}
	}
}

// After a loss of power the database speaks of Pods of which nothing is left.
func TestAfterALossOfPowerNewPodsRunAndOldOnesCanBeRemoved(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	lost := w.runPod(w.sandboxConfig("one"), "mend.local/web:1.0")
	w.powerCut()

	w.start()
	w.importBuiltin()
	status, err := w.runtime.PodSandboxStatus(w.context(), lost.sandbox, false)
	if err != nil || status.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("the lost sandbox is %v (error %v), want it not ready", status, err)
	}
	containers, err := w.runtime.ListContainers(w.context(), &runtimeapi.ContainerFilter{PodSandboxId: lost.sandbox})
	if err != nil || len(containers) != 1 || containers[0].GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("the lost sandbox's containers are %v (error %v), want one that has exited", containers, err)
	}
	p := w.runPod(w.sandboxConfig("two"), "mend.local/web:1.0")
	w.get(p.ip, "8080", "/")
	if err := w.runtime.StopPodSandbox(w.context(), lost.sandbox); err != nil {
		t.Errorf("stop the lost sandbox: %v", err)
	}
	if err := w.runtime.RemovePodSandbox(w.context(), lost.sandbox); err != nil {
		t.Errorf("remove the lost sandbox: %v", err)
	}
	w.get(p.ip, "8080", "/")
}

// powerCut ends everything at once and takes away what a boot does not bring back.
func (w *world) powerCut() {
	w.t.Helper()
	ctx := w.context()
	pid := w.sup.PID()
	w.sup.Release()
	w.sup = nil
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	err := errors.Join(
		cleanup.KillCgroup(ctx, w.cfg.CgroupParent),
		cleanup.KillPrograms(ctx, filepath.Join(w.cfg.DataDir, "bin")),
		cleanup.RemoveCgroup(w.cfg.CgroupParent),
		cleanup.Unmount(w.cfg.RunDir),
		cleanup.RemoveTree(w.cfg.RunDir),
		network.Teardown(ctx, w.netCfg),
	)
	if err != nil {
		w.t.Fatal(err)
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
	w.runPod(w.sandboxConfig("one"), "mend.local/web:1.0", func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{HostPath: precious, ContainerPath: "/data"}}
	})
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

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gracefulManifest is a Pod that notes on the host that it was asked to end.
const gracefulManifest = `
apiVersion: v1
kind: Pod
metadata: {name: graceful}
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: main
    image: mend.local/web:1.0
    lifecycle: {preStop: {exec: {command: [touch, /host/end]}}}
    volumeMounts: [{name: host, mountPath: /host}]
  volumes: [{name: host, hostPath: {path: HOST, type: Directory}}]
`

// hostDir is a folder of the host that Pods of this test mount.
func (c *cluster) hostDir() string { return filepath.Join(c.dir, "host") }

// expand replaces a word of a template.
func expand(template, word, by string) string { return strings.ReplaceAll(template, word, by) }

// startGraceful runs the Pod and returns where it notes its end.
func (c *cluster) startGraceful() string {
	c.t.Helper()
	c.must(os.MkdirAll(c.hostDir(), 0o700))
	c.must(os.Chmod(c.hostDir(), 0o777)) // the image's user is nobody on the host
	c.must(os.Chmod(c.dir, 0o755))
	c.mustApply(expand(gracefulManifest, "HOST", c.hostDir()))
	c.readyPod("graceful")
	return filepath.Join(c.hostDir(), "end")
}

// TestDownWhileContainerdWaits: a mend that goes down while containerd waits to be
// started again has it started at once, and ends the Pods in their grace periods.
func TestDownWhileContainerdWaits(t *testing.T) {
	needRoot(t)
	t.Parallel() // it mostly waits
	c := newCluster(t)
	c.start()
	end := c.startGraceful()
	// Each death within a minute doubles the pause: 0, 0.1, 0.2, ... 6.4 s.
	for range 8 {
		pid := c.containerdPID()
		c.signal(pid, unix.SIGKILL)
		c.eventually("containerd runs again", func() string {
			return want(c.containerdPID() != pid, "it was process %d", pid)
		})
	}
	c.signal(c.containerdPID(), unix.SIGKILL)
	began := time.Now()
	if got := c.run("down", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("mend down: %+v", got)
	}
	t.Logf("down after %s", time.Since(began).Round(time.Millisecond))
	if _, err := os.Stat(end); err != nil {
		t.Errorf("the container was not asked to end: %v", err)
	}
}

// TestRuntimeThatHangs: a containerd that gives no answer is named in mend's status,
// and replaced after a while; its containers do not notice.
func TestRuntimeThatHangs(t *testing.T) {
	needRoot(t)
	t.Parallel() // it mostly waits
	c := newCluster(t)
	c.start()
	c.mustKubectl("create", "deployment", "rest", "--image=mend.local/web:1.0", "--replicas=2")
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	before := c.resting("app=rest")
	hung := c.containerdPID()
	c.must(unix.Kill(hung, unix.SIGSTOP))
	c.eventually("mend status names it", func() string {
		message, healthy := c.component("containerd")
		return want(!healthy && strings.Contains(message, "has not answered"), "containerd: %s", message)
	})
	c.eventually("another containerd runs", func() string {
		message, healthy := c.component("containerd")
		return want(healthy && c.containerdPID() != hung && strings.Contains(message, ", 1 restarts"), "containerd: %s", message)
	})
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
	c.mustKubectl("run", "after", "--image=mend.local/web:1.0")
	c.readyPod("after")
	sameFacts(t, "after the hang", before, c.resting("app=rest"))
}

// TestPurgeThatCannotUnmount: a purge that may not unmount says so and deletes nothing
// behind the mount, neither does one that may.
func TestPurgeThatCannotUnmount(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start()
	c.startGraceful()
	precious := filepath.Join(c.hostDir(), "precious")
	c.must(os.WriteFile(precious, []byte("the host's"), 0o600))
	// As if the host's folder had come to be mounted among the Pods' files.
	inside := filepath.Join(c.data(), "agent", "pods", "lost", "volumes", "host")
	c.must(os.MkdirAll(inside, 0o700))
	c.must(unix.Mount(c.hostDir(), inside, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(inside, unix.MNT_DETACH) })
	whole := func(when string) {
		if text, err := os.ReadFile(precious); err != nil || string(text) != "the host's" {
			t.Errorf("%s the host's file holds %q (%v)", when, text, err)
		}
	}
	out, err := c.purgeWithout(unixCapSysAdmin)
	if err == nil || !strings.Contains(out, "unmount "+inside) {
		t.Errorf("a purge that may not unmount: %v\n%s", err, out)
	}
	whole("after the purge that could not")
	if got := c.run("down", "--purge", "--data-dir", c.data()); got.code != 0 {
		t.Errorf("mend down --purge: %+v", got)
	}
	whole("after the purge")
}

const unixCapSysAdmin = 21

// purgeWithout runs mend down --purge in a process that can never have a capability.
func (c *cluster) purgeWithout(capability uintptr) (string, error) {
	type ended struct {
		out []byte
		err error
	}
	done := make(chan ended, 1)
	go func() {
		// The thread is never unlocked, so it ends with this goroutine and its loss.
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			done <- ended{err: err}
			return
		}
		command := exec.Command(c.mend, "down", "--purge", "--data-dir", c.data())
		out, err := command.CombinedOutput()
		done <- ended{out, err}
	}()
	got := <-done
	return string(got.out), got.err
}

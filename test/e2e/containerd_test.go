package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// containerdPID is what the record in the run directory names.
func (c *cluster) containerdPID() int {
	c.t.Helper()
	id, err := os.ReadFile(filepath.Join(c.data(), "instance"))
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("/run/mend", strings.TrimSpace(string(id)), "containerd.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	found := regexp.MustCompile(`"pid": ?(\d+)`).FindSubmatch(text)
	if found == nil {
		c.t.Fatalf("no pid in %s", text)
	}
	pid, err := strconv.Atoi(string(found[1]))
	if err != nil {
		c.t.Fatal(err)
	}
	return pid
}

// TestKillContainerd kills the runtime again and again beside Pods at rest.
func TestKillContainerd(t *testing.T) {
	needRoot(t)
	random := seeded(t)
	c := newCluster(t)
	c.start()
	c.mustApply(fmt.Sprintf(restingManifest, size(t, 3, 5, 10)))
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	c.readyPod("talker")
	before := c.resting("app=rest")
	kills := size(t, 1, 7, 100) // from 7 on the pause before a start exceeds 3 s
	for kill := range kills {
		pid := c.containerdPID()
		c.signal(pid, unix.SIGKILL)
		restarts := fmt.Sprintf(", %d restarts", kill+1)
		c.eventually("mend status counts the restart", func() string {
			message, healthy := c.component("containerd")
			return want(healthy && strings.Contains(message, restarts), "containerd: %s", message)
		})
		sameFacts(t, restarts, before, c.resting("app=rest"))
		if t.Failed() {
			return
		}
		// While it was down, or now that it is back, a Pod can be made and ended.
		pause(random, 1e9)
	}
	c.mustKubectl("run", "after", "--image=mend.local/web:1.0")
	c.readyPod("after")
	c.mustKubectl("rollout", "status", "deployment/roll", "--timeout=120s")
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
	sameFacts(t, "at the end", before, c.resting("app=rest"))
	c.noLineLost("talker")
}

// TestContainerEndsWhileContainerdIsDown: what ends while containerd is down is seen when it is back.
func TestContainerEndsWhileContainerdIsDown(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start()
	c.mustKubectl("run", "ends", "--image=mend.local/web:1.0", "--command", "--", "sh", "-c", "echo "+c.dir+"; while true; do sleep 1; done")
	c.readyPod("ends")
	victim := c.process("sh\x00-c\x00echo " + c.dir)
	c.signal(c.containerdPID(), unix.SIGKILL)
	if err := unix.Kill(victim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.pod("ends", "is restarted", func(pod *corev1.Pod) string {
		status := pod.Status.ContainerStatuses[0]
		return want(status.RestartCount == 1 && podutil.IsPodReady(pod), "status %+v", status)
	})
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
}

// TestKillShim: a Pod whose shim was killed is seen as failed and runs again.
func TestKillShim(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start()
	c.mustKubectl("create", "deployment", "shimmed", "--image=mend.local/web:1.0", "--replicas=2")
	c.mustKubectl("rollout", "status", "deployment/shimmed", "--timeout=120s")
	for name, was := range c.resting("app=shimmed") {
		c.signal(c.shimOf(name), unix.SIGKILL)
		c.eventually("the Pod's container is another one, and runs", func() string {
			is := c.resting("app=shimmed")[name]
			return want(is.Containers != was.Containers && strings.HasPrefix(is.Ready, "True"), "%+v", is)
		})
	}
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
}

// sandboxOf is the id of a Pod's ready sandbox.
func (c *cluster) sandboxOf(pod string) string {
	c.t.Helper()
	sandboxes, err := c.runtime().ListPodSandbox(context.Background(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, sandbox := range sandboxes {
		if sandbox.Metadata.Name == pod && sandbox.State == 0 {
			return sandbox.Id
		}
	}
	c.t.Fatalf("Pod %s has no sandbox", pod)
	return ""
}

// shimOf is the process that has the Pod's sandbox as -id.
func (c *cluster) shimOf(pod string) int {
	c.t.Helper()
	return c.process("containerd-shim-runc-v2\x00", "-id\x00"+c.sandboxOf(pod))
}

// process finds the one process whose command line holds all parts, which must
// name something that only this test has.
func (c *cluster) process(parts ...string) int {
	c.t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		c.t.Fatal(err)
	}
	var found []int
next:
	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err != nil {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(string(text), part) {
				continue next
			}
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line))); err == nil {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		c.t.Fatalf("processes with %q: %v, want one", parts, found)
	}
	return found[0]
}

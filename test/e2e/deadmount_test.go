package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mend/internal/testkit/deadmount"
)

// usesManifest is a Pod that has its volume on a file system, and a probe that looks
// at it, not so often that its failures are the only events that count (25 at once).
const usesManifest = `
apiVersion: v1
kind: Pod
metadata: {name: uses}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: main
    image: mend.local/web:1.0
    volumeMounts: [{name: host, mountPath: /host}]
    readinessProbe: {exec: {command: [ls, /host]}, periodSeconds: 5, timeoutSeconds: 1, failureThreshold: 1}
  volumes: [{name: host, hostPath: {path: HOST, type: Directory}}]
`

// wantsManifest is a Pod whose volume is in a folder of it: NAME, KIND and SUB differ.
const wantsManifest = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: main
    image: mend.local/web:1.0
    volumeMounts: [{name: host, mountPath: /host, subPath: SUB}]
  volumes: [{name: host, hostPath: {path: HOST/NAME, type: KIND}}]
`

// TestDeadHostPath: a file system of the host hangs for ever, below a Pod that uses it
// and for Pods that want to. All else goes on; what is stuck is named; mend can be
// killed, started, ended; and once the file system is gone nothing is left.
func TestDeadHostPath(t *testing.T) {
	needRoot(t)
	t.Parallel() // it mostly waits
	c := newCluster(t)
	c.must(os.Chmod(c.dir, 0o755))
	c.must(os.Mkdir(c.hostDir(), 0o755))
	dead := deadmount.New(t, c.hostDir())
	port := freePort(t)
	c.start("--api-port", port)
	c.mustKubectl("create", "deployment", "rest", "--image=mend.local/web:1.0", "--replicas=2")
	c.mustApply(expand(usesManifest, "HOST", dead.Dir))
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	c.readyPod("uses")
	before := c.resting("app=rest")
	dead.Die()
	wants := c.startWants(dead.Dir)
	c.mustKubectl("run", "beside", "--image=mend.local/web:1.0")
	c.readyPod("beside")
	c.eventually("the probe that hangs fails in its time", func() string {
		return c.hasEvent("uses", "Unhealthy", `command timed out: "ls /host" timed out after 1s`)
	})
	for _, name := range wants {
		c.eventually("the event names what is stuck", func() string {
			return c.hasEvent(name, "FailedMount", fmt.Sprintf(
				"hostPath %s/%s did not answer within 10s: the file system at %s (fuse of deadmount) hangs", dead.Dir, name, dead.Dir))
		})
	}
	c.deadNode(port, wants, before)
	long := size(t, 0, 1, 1) > 0
	if long { // it takes a minute
		c.mustKubectl("delete", "pod", "uses", "--wait=false")
		c.eventually("the event says why the Pod does not end", func() string {
			return c.hasEvent("uses", "FailedKillPod", "container main was killed and has not ended")
		})
	}
	c.endsWithDead(long)
	if len(stuckThreads(c)) == 0 {
		t.Error("nothing waits in the kernel any more: was it stuck at all?")
	}
	if long {
		c.start("--api-port", port)
	}
	dead.End()
	c.eventually("nothing waits in the kernel", func() string {
		left := stuckThreads(c)
		return want(len(left) == 0, "threads %v", left)
	})
	if long {
		c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
	}
}

// endsWithDead ends mend while a container waits for the file system, and tries to purge
// it, which takes two minutes.
func (c *cluster) endsWithDead(purge bool) {
	c.t.Helper()
	began := time.Now()
	if got := c.run("down", "--data-dir", c.data()); got.code != 0 || !strings.Contains(got.out, "still runs in default/uses") {
		c.t.Errorf("mend down: %+v", got)
	}
	if took := time.Since(began); took > 30*time.Second {
		c.t.Errorf("mend down took %s", took)
	}
	if !purge {
		return
	}
	if got := c.run("down", "--purge", "--data-dir", c.data()); got.code == 0 || !strings.Contains(got.err, "while a file system hangs") {
		c.t.Errorf("mend down --purge: %+v", got)
	}
}

// startWants applies Pods of each kind whose volumes are on the file system.
func (c *cluster) startWants(dir string) (names []string) {
	c.t.Helper()
	var all []string
	for _, one := range []struct{ name, kind, sub string }{
		{"directory", "Directory", `""`}, {"unset", `""`, `""`}, {"create", "DirectoryOrCreate", `""`}, {"sub", `""`, "a/b"},
	} {
		names = append(names, one.name)
		manifest := expand(expand(wantsManifest, "HOST", dir), "NAME", one.name)
		all = append(all, expand(expand(manifest, "KIND", one.kind), "SUB", one.sub))
	}
	c.mustApply(strings.Join(all, "---"))
	return names
}

// deadNode looks at a node with a file system that hangs: mend is killed and started,
// the stuck Pods are deleted, others run, heal and are not touched.
func (c *cluster) deadNode(port string, stuck []string, before map[string]facts) {
	c.t.Helper()
	c.signal(c.mendPID(), unix.SIGKILL)
	c.start("--api-port", port)
	sameFacts(c.t, "beside a file system that hangs, after a kill", before, c.resting("app=rest"))
	c.mustKubectl("delete", "pod", "beside", "--timeout=45s")
	var deletions sync.WaitGroup
	for _, name := range stuck {
		deletions.Go(func() {
			if got := c.kubectl("delete", "pod", name, "--timeout=45s"); got.code != 0 {
				c.t.Errorf("delete %s: %+v", name, got)
			}
		})
	}
	deletions.Wait()
	if out := c.mustKubectl("get", "events", "-o", "jsonpath={.items[*].message}"); strings.Contains(out, "context canceled") {
		c.t.Errorf("what was given up is told as a failure: %s", out)
	}
	c.mustKubectl("scale", "deployment/rest", "--replicas=3")
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=60s")
	if n := len(stuckThreads(c)); n > len(stuck)*2+1 {
		c.t.Errorf("%d threads wait for the file system", n)
	}
}

// hasEvent is a condition for eventually: the Pod has an event with such a message.
func (c *cluster) hasEvent(pod, reason, message string) string {
	got := c.kubectl("get", "events", "--field-selector", "involvedObject.name="+pod+",reason="+reason, "-o", "jsonpath={.items[*].message}")
	return want(strings.Contains(got.out, message), "%s: events of reason %s: %s%s", pod, reason, got.out, got.err)
}

// stuckThreads lists the threads of a cluster that wait for the file system in the
// kernel: of mend's children, whose arguments name the path, and of its containers, also
// when nothing else of their process is left.
func stuckThreads(c *cluster) (threads []string) {
	c.t.Helper()
	id, err := os.ReadFile(filepath.Join(c.data(), "instance"))
	c.must(err)
	tasks, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	c.must(err)
	for _, task := range tasks {
		where, err := os.ReadFile(filepath.Join(task, "wchan"))
		if err != nil || !strings.Contains(string(where), "request_wait_answer") {
			continue
		}
		arguments, _ := os.ReadFile(filepath.Join(task, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(task, "cgroup"))
		if strings.Contains(string(arguments), c.dir) || strings.Contains(string(groups), "/mend-"+strings.TrimSpace(string(id))) {
			threads = append(threads, task)
		}
	}
	return threads
}

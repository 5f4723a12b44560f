package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// restingManifest is a Deployment at rest whose Pods are watched by probes, and a
// Pod that counts in its log.
const restingManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: rest}
spec:
  replicas: %d
  selector: {matchLabels: {app: rest}}
  template:
    metadata: {labels: {app: rest}}
    spec:
      containers:
      - name: web
        image: mend.local/web:1.0
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10}
        livenessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 5, failureThreshold: 3, timeoutSeconds: 10}
---
apiVersion: v1
kind: Pod
metadata: {name: talker, labels: {app: rest}}
spec:
  containers:
  - name: talker
    image: mend.local/web:1.0
    command: [sh, -c, "while true; do echo line; sleep 0.1; done"]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: roll}
spec:
  replicas: 3
  selector: {matchLabels: {app: roll}}
  template:
    metadata: {labels: {app: roll}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: "mend.local/web:1.0", env: [{name: ROUND, value: "0"}]}
`

// TestKillMend kills mend at random moments of rollouts and writes.
func TestKillMend(t *testing.T) {
	needRoot(t)
	random := seeded(t)
	c := newCluster(t)
	port := freePort(t)
	c.start("--api-port", port)
	c.mustApply(fmt.Sprintf(restingManifest, size(t, 5, 10, 45)))
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	c.mustKubectl("rollout", "status", "deployment/roll", "--timeout=120s")
	c.readyPod("talker")
	before := c.resting("app=rest")
	writes := c.startWriter(100, 10*time.Millisecond)
	var back []time.Duration
	for round := range size(t, 3, 10, 200) {
		when := fmt.Sprintf("kill %d", round+1)
		c.mustKubectl("set", "env", "deployment/roll", "ROUND="+strconv.Itoa(round+1))
		pause(random, 2*time.Second)
		c.signal(c.mendPID(), unix.SIGKILL)
		pid := c.containerdPID()
		back = append(back, c.startMeasured("--api-port", port))
		if again := c.containerdPID(); again != pid {
			t.Errorf("%s: containerd %d was replaced by %d", when, pid, again)
		}
		writes.check(t, when)
		c.mustKubectl("rollout", "status", "deployment/roll", "--timeout=90s")
		sameFacts(t, when, before, c.resting("app=rest"))
		if t.Failed() {
			return
		}
	}
	writes.end()
	writes.check(t, "at the end")
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
	sameFacts(t, "at the end", before, c.resting("app=rest"))
	c.noLineLost("talker")
	slices.Sort(back)
	t.Logf("%d kills, %d acknowledged writes; API back after kill -9 with %d Pods: median %s, most %s", len(back), writes.count(),
		len(before)+3, back[len(back)/2].Round(time.Millisecond), back[len(back)-1].Round(time.Millisecond))
}

// startMeasured starts mend and returns after what time its API answered.
func (c *cluster) startMeasured(flags ...string) time.Duration {
	c.t.Helper()
	began := time.Now()
	args := append([]string{"up", "--data-dir", c.data(), "--kubeconfig", c.kubeconfig()}, flags...)
	ended := make(chan result, 1)
	go func() { ended <- c.run(args...) }()
	took := c.awaitAPI(began)
	if got := <-ended; got.code != 0 {
		c.t.Fatalf("mend up: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	return took
}

// noLineLost follows the log of a container that writes some ten lines a second: its
// timestamps have no hole, but for one behind which come at once the lines that waited
// in the container's pipe while containerd, which dates them, was away.
func (c *cluster) noLineLost(pod string) {
	c.t.Helper()
	var stamps []time.Time
	for line := range strings.Lines(c.mustKubectl("logs", pod, "--timestamps")) {
		stamp, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || text != "line" {
			c.t.Fatalf("log line %q: %v", line, err)
		}
		stamps = append(stamps, at)
	}
	if len(stamps) < 10 || time.Since(stamps[len(stamps)-1]) > 10*time.Second {
		c.t.Fatalf("the log of %s has %d lines, the last at %v", pod, len(stamps), stamps)
	}
	gaps := make([]time.Duration, len(stamps)-1)
	for i := range gaps {
		gaps[i] = stamps[i+1].Sub(stamps[i])
	}
	const longest, atOnce = 3 * time.Second, 20 * time.Millisecond
	var paced []time.Duration
	for _, gap := range gaps {
		if gap > atOnce && gap <= longest {
			paced = append(paced, gap)
		}
	}
	slices.Sort(paced)
	pace := paced[len(paced)/2]
	for i, gap := range gaps {
		if gap <= longest {
			continue
		}
		waited := 1
		for _, next := range gaps[i+1:] {
			if next > atOnce {
				break
			}
			waited++
		}
		if due := int(gap / pace); waited < due/2 {
			c.t.Errorf("no log line of %s for %s before %s, and then %d at once of some %d", pod, gap, stamps[i+1], waited, due)
		}
	}
}

// TestKillWhilePodsStart kills mend while sandboxes are half made.
func TestKillWhilePodsStart(t *testing.T) {
	needRoot(t)
	random := seeded(t)
	c := newCluster(t)
	port := freePort(t)
	c.start("--api-port", port)
	replicas := size(t, 10, 30, 30)
	for round := range size(t, 1, 2, 10) {
		name := fmt.Sprintf("half-%d", round)
		c.mustKubectl("create", "deployment", name, "--image=mend.local/web:1.0", fmt.Sprintf("--replicas=%d", replicas))
		pause(random, 1500*time.Millisecond)
		c.signal(c.mendPID(), unix.SIGKILL)
		c.start("--api-port", port)
		c.mustKubectl("rollout", "status", "deployment/"+name, "--timeout=120s")
		c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
		for pod, is := range c.resting("app=" + name) {
			if strings.HasSuffix(is.Containers, " 0;") {
				continue
			}
			t.Errorf("Pod %s was restarted: %s", pod, is.Containers)
		}
		c.mustKubectl("delete", "deployment", name)
		c.eventually("the Pods are gone", func() string {
			return want(len(c.resting("app="+name)) == 0, "%d are left", len(c.resting("app="+name)))
		})
	}
}

// TestPodsOutliveMend ends mend in the ways that leave Pods alone.
func TestPodsOutliveMend(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	port := freePort(t)
	c.start("--api-port", port)
	c.mustApply(fmt.Sprintf(restingManifest, 3))
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	c.readyPod("talker")
	before := c.resting("app=rest")
	for _, tt := range []struct {
		name string
		end  func()
	}{
		{"SIGTERM", func() { c.signal(c.mendPID(), unix.SIGTERM) }},
		{"down --keep-pods", func() {
			if got := c.run("down", "--keep-pods", "--data-dir", c.data()); got.code != 0 {
				t.Fatalf("mend down --keep-pods: %+v", got)
			}
		}},
		{"down --keep-pods of a mend that was killed", func() {
			c.signal(c.mendPID(), unix.SIGKILL)
			if got := c.run("down", "--keep-pods", "--data-dir", c.data()); got.code != 0 {
				t.Fatalf("mend down --keep-pods: %+v", got)
			}
		}},
	} {
		tt.end()
		c.start("--api-port", port)
		sameFacts(t, tt.name, before, c.resting("app=rest"))
		// Probes go on: what was Ready is still looked at.
		c.eventually("the node is Ready and each Pod runs once", c.eachRunsOnce)
		sameFacts(t, tt.name+", later", before, c.resting("app=rest"))
	}
	c.noLineLost("talker")
}

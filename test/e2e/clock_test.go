package e2e

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// datedManifest holds what depends on times that were written down.
const datedManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: dated}
spec:
  replicas: 2
  minReadySeconds: 2
  progressDeadlineSeconds: 600
  selector: {matchLabels: {app: dated}}
  template:
    metadata: {labels: {app: dated}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: mend.local/web:1.0
        readinessProbe: {httpGet: {path: /, port: 8080}, initialDelaySeconds: 1, periodSeconds: 1, timeoutSeconds: 10}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: rolling}
spec:
  replicas: 1
  progressDeadlineSeconds: 600
  selector: {matchLabels: {app: rolling}}
  template:
    metadata: {labels: {app: rolling}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: mend.local/web:1.0, readinessProbe: {exec: {command: [test, -e, /tmp/go]}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Pod
metadata: {name: crashing}
spec:
  containers: [{name: main, image: mend.local/web:1.0, command: [sh, -c, "exit 1"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: limited, labels: {app: limited}}
spec:
  activeDeadlineSeconds: 3600
  containers: [{name: web, image: mend.local/web:1.0}]
`

// TestWallClockJumps: the wall clock of mend jumps a day forth, two back and one forth,
// beside Pods at rest, a rollout under way, a container in back-off and a Pod with a
// deadline. None of them takes note, and what is begun then works.
func TestWallClockJumps(t *testing.T) {
	needRoot(t)
	t.Parallel() // it mostly waits
	if runtime.GOARCH != "amd64" {
		t.Skip("left out: the clock can be made to jump on amd64 only")
	}
	c := newCluster(t)
	c.mend = c.build("-tags", "walljump", "-ldflags", "-s -w")
	c.start()
	c.mustApply(datedManifest)
	c.mustKubectl("rollout", "status", "deployment/dated", "--timeout=120s")
	c.readyPod("limited")
	c.crashed(2)
	resting := func() map[string]facts { return c.resting("app in (dated, limited)") }
	before := resting()
	for _, jump := range []struct {
		name    string
		signals []unix.Signal
		is      time.Duration // ahead of the right time, from then on
	}{
		{"a day forth", []unix.Signal{unix.SIGUSR1}, 24 * time.Hour},
		{"a day back", []unix.Signal{unix.SIGUSR2, unix.SIGUSR2}, -24 * time.Hour},
		{"back to the right time", []unix.Signal{unix.SIGUSR1}, 0},
	} {
		restarts := c.crashes()
		for _, signal := range jump.signals {
			c.must(unix.Kill(c.mendPID(), signal))
			<-time.After(200 * time.Millisecond) // equal signals at once count as one
		}
		if ahead := c.ahead(); (ahead - jump.is).Abs() > time.Minute {
			t.Fatalf("%s: mend's clock is ahead by %s, want %s", jump.name, ahead, jump.is)
		}
		// Longer than the period of those that watch: the node's Lease is renewed each 10 s.
		<-time.After(time.Duration(size(t, 12, 12, 60)) * time.Second)
		sameFacts(t, jump.name, before, resting())
		if n := c.crashes(); n > restarts+1 {
			t.Errorf("%s: the container in back-off was restarted %d times", jump.name, n-restarts)
		}
		c.unmoved(jump.name)
		c.mustKubectl("set", "env", "deployment/dated", "JUMP="+strings.ReplaceAll(jump.name, " ", "-"))
		c.mustKubectl("rollout", "status", "deployment/dated", "--timeout=60s")
		c.eventually("every Pod of the Deployment is new", func() string {
			n := len(c.resting("app=dated"))
			return want(n == 2, "%d Pods", n)
		})
		before = resting()
	}
	// Back-off counts on, however the clock went: restarts go on, after at most 80 s each.
	if n := c.crashes(); n < 3 {
		c.crashed(3)
	}
}

// ahead is by how much mend's wall clock is, as it dates what is created.
func (c *cluster) ahead() time.Duration {
	c.t.Helper()
	maps := c.client.CoreV1().ConfigMaps("default")
	made, err := maps.Create(c.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "dated-"}}, metav1.CreateOptions{})
	c.must(err)
	return time.Until(made.CreationTimestamp.Time)
}

func (c *cluster) crashes() int32 {
	c.t.Helper()
	pod, err := c.client.CoreV1().Pods("default").Get(c.t.Context(), "crashing", metav1.GetOptions{})
	c.must(err)
	if len(pod.Status.ContainerStatuses) == 0 {
		return 0
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}

// crashed waits until the crashing Pod was restarted so often.
func (c *cluster) crashed(times int32) {
	c.t.Helper()
	c.eventually("the crashing Pod is restarted", func() string {
		n := c.crashes()
		return want(n >= times, "%d times of %d", n, times)
	})
}

// unmoved says what the jump must not have changed but has.
func (c *cluster) unmoved(when string) {
	c.t.Helper()
	node, err := c.client.CoreV1().Nodes().List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	for _, condition := range node.Items[0].Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			c.t.Errorf("%s: the node is not Ready: %s", when, condition.Message)
		}
	}
	if len(node.Items[0].Spec.Taints) > 0 {
		c.t.Errorf("%s: the node's taints are %v", when, node.Items[0].Spec.Taints)
	}
	rolling, err := c.client.AppsV1().Deployments("default").Get(c.t.Context(), "rolling", metav1.GetOptions{})
	c.must(err)
	for _, condition := range rolling.Status.Conditions {
		if condition.Reason == "ProgressDeadlineExceeded" {
			c.t.Errorf("%s: the rollout that is under way is said to have failed: %s", when, condition.Message)
		}
	}
}

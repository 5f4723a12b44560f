package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestNothingLeaks: rounds of Pods that come and go leave mend and containerd with as
// many goroutines and descriptors as before, and no process of theirs behind.
func TestNothingLeaks(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start()
	round := func() {
		c.mustKubectl("create", "deployment", "passing", "--image=mend.local/web:1.0", "--replicas=5")
		c.mustKubectl("rollout", "status", "deployment/passing", "--timeout=120s")
		c.mustKubectl("set", "image", "deployment/passing", "web=mend.local/web:2.0")
		c.mustKubectl("rollout", "status", "deployment/passing", "--timeout=120s")
		pod := c.mustKubectl("get", "pods", "-l", "app=passing", "-o", "jsonpath={.items[0].metadata.name}")
		c.kubectl("exec", pod, "--", "true")
		c.kubectl("logs", pod)
		c.mustKubectl("delete", "deployment", "passing")
		c.eventually("the Pods are gone", func() string {
			n := len(c.resting("app=passing"))
			return want(n == 0, "%d are left", n)
		})
	}
	round() // what is made once is made now
	before := c.usage()
	for range size(t, 2, 4, 20) {
		round()
	}
	// What ends in the background may take its time; a leak grows with each round.
	c.eventually("goroutines and descriptors are as before", func() string {
		after := c.usage()
		for name, n := range after {
			if n > before[name]+before[name]/10+10 {
				return fmt.Sprintf("%s: %d before, %d after", name, before[name], n)
			}
		}
		return ""
	})
	t.Logf("before %v, after %v", before, c.usage())
	id, err := os.ReadFile(filepath.Join(c.data(), "instance"))
	if err != nil {
		t.Fatal(err)
	}
	c.eventually("no shim is left", func() string {
		n := countProcesses("/run/mend/" + strings.TrimSpace(string(id)) + "/containerd.sock")
		return want(n == 0, "%d processes", n)
	})
}

// usage counts what mend and its containerd hold.
func (c *cluster) usage() map[string]int {
	c.t.Helper()
	found := regexp.MustCompile(`(?m)^go_goroutines (\d+)`).FindStringSubmatch(c.mustKubectl("get", "--raw", "/metrics"))
	if found == nil {
		c.t.Fatal("no go_goroutines in /metrics")
	}
	goroutines, err := strconv.Atoi(found[1])
	if err != nil {
		c.t.Fatal(err)
	}
	usage := map[string]int{"goroutines of mend": goroutines}
	for name, pid := range map[string]int{"mend": c.mendPID(), "containerd": c.containerdPID()} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			c.t.Fatal(err)
		}
		usage["descriptors of "+name] = len(entries)
	}
	return usage
}

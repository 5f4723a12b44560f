package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// anotherVersion is what the other mend of the upgrade calls itself.
const anotherVersion = "0.999.0"

// build builds a mend that differs from the one under test by flags of go build.
func (c *cluster) build(flags ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*commandTime)
	defer cancel()
	path := filepath.Join(c.dir, "another-mend")
	build := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-o", path}, flags, []string{"./cmd/mend"})...)
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false") // as make builds
	if out, err := build.CombinedOutput(); err != nil {
		c.t.Fatalf("build another mend: %v\n%s", err, out)
	}
	return path
}

// TestUpgrade: another version takes over while Pods run, after mend was killed and
// after it went down in order, and the same way back.
func TestUpgrade(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	port := freePort(t)
	c.start("--api-port", port)
	c.mustKubectl("create", "deployment", "rest", "--image=mend.local/web:1.0", "--replicas=3")
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	before := c.resting("app=rest")
	first := c.mend
	another := c.build("-ldflags", "-s -w -X mend/internal/version.Version="+anotherVersion+
		" -X k8s.io/component-base/version.gitVersion=v1.37.2+mend."+anotherVersion)
	c.signal(c.mendPID(), unix.SIGKILL)
	c.mend = another
	c.start("--api-port", port)
	c.upgraded("after a kill", 1)
	sameFacts(t, "after the upgrade of a mend that was killed", before, c.resting("app=rest"))
	if got := c.run("down", "--keep-pods", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("mend down --keep-pods: %+v", got)
	}
	c.mend = first
	c.start("--api-port", port)
	c.upgraded("on the way back", 2)
	sameFacts(t, "after the way back", before, c.resting("app=rest"))
	c.mustKubectl("scale", "deployment/rest", "--replicas=4")
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
}

// upgraded says whether a snapshot was taken each time before another version began.
func (c *cluster) upgraded(when string, times int) {
	c.t.Helper()
	if got := c.run("snapshot", "list", "--data-dir", c.data()); got.code != 0 || strings.Count(got.out, "-before-") != times {
		c.t.Errorf("%s: the snapshots are %+v, want %d from before an upgrade", when, got, times)
	}
}

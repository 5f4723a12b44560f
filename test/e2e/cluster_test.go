package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	internalapi "k8s.io/cri-api/pkg/apis"
)

const (
	// stateLimit bounds the wait for a state; it is a limit, not an expectation.
	stateLimit  = 90 * time.Second
	commandTime = 3 * time.Minute
)

// cluster is a mend of one test, in a directory of its own.
type cluster struct {
	t      *testing.T
	dir    string
	mend   string
	client kubernetes.Interface
	// cri is the client that runtime made, of criSocket.
	cri       internalapi.RuntimeService
	criSocket string
}

// result is what a command printed and how it ended.
type result struct {
	out, err string
	code     int
}

// size is how much of the tables a run takes.
func size(t *testing.T, smoke, short, full int) int {
	t.Helper()
	switch os.Getenv("MEND_E2E") {
	case "full":
		return full
	case "short":
		return short
	case "", "smoke":
		return smoke
	}
	t.Fatalf("MEND_E2E=%s: want smoke, short or full", os.Getenv("MEND_E2E"))
	return 0
}

// needRoot skips a test that runs containers where they cannot run.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("left out: real containers need root, and under CI=true nothing may be left out")
	}
	t.Skip("left out: real containers need root")
}

// binary is the mend under test, built by make build.
func binary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", "mend"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	return path
}

// newCluster prepares a directory; nothing runs yet. At the end of the test all
// of it is purged, and what it printed last is shown if the test failed.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "mend-e2e-") // t.TempDir's paths are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, dir: dir, mend: binary(t)}
	t.Cleanup(c.end)
	return c
}

// start runs `mend up` with more flags and connects to it.
func (c *cluster) start(flags ...string) {
	c.t.Helper()
	args := append([]string{"up", "--data-dir", c.data(), "--api-port", "0", "--kubeconfig", c.kubeconfig()}, flags...)
	if got := c.run(args...); got.code != 0 {
		c.t.Fatalf("mend up: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	c.connect()
}

func (c *cluster) connect() {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		c.t.Fatal(err)
	}
	config.QPS = -1
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) data() string       { return filepath.Join(c.dir, "data") }
func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

func (c *cluster) end() {
	if c.t.Failed() {
		for _, args := range [][]string{
			{"get", "nodes,deploy,rs,pods", "-A", "-o", "wide"},
			{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		} {
			c.t.Logf("kubectl %s\n%s", strings.Join(args, " "), c.kubectl(args...).out)
		}
		c.t.Logf("mend logs\n%s", c.run("logs", "--tail", "60", "--data-dir", c.data()).out)
	}
	if got := c.run("down", "--purge", "--data-dir", c.data()); got.code != 0 {
		c.t.Errorf("mend down --purge: exit code %d\n%s%s", got.code, got.out, got.err)
		return // what could not be purged stays for a look at it
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.t.Error(err)
	}
}

// run runs mend.
func (c *cluster) run(args ...string) result { return c.runWith("", args...) }

// kubectl runs the embedded kubectl on this cluster.
func (c *cluster) kubectl(args ...string) result {
	return c.runWith("", append([]string{"kubectl"}, args...)...)
}

// apply feeds a manifest to kubectl apply.
func (c *cluster) apply(manifest string, flags ...string) result {
	return c.runWith(manifest, append([]string{"kubectl", "apply", "-f", "-"}, flags...)...)
}

func (c *cluster) mustApply(manifest string) {
	c.t.Helper()
	if got := c.apply(manifest); got.code != 0 {
		c.t.Fatalf("kubectl apply: exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

func (c *cluster) mustKubectl(args ...string) string {
	c.t.Helper()
	got := c.kubectl(args...)
	if got.code != 0 {
		c.t.Fatalf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), got.code, got.out, got.err)
	}
	return got.out
}

func (c *cluster) runWith(stdin string, args ...string) result {
	return c.execute(stdin, nil, args...)
}

// runAs runs mend with somebody else's rights.
func (c *cluster) runAs(who *syscall.Credential, args ...string) result {
	return c.execute("", &syscall.SysProcAttr{Credential: who}, args...)
}

func (c *cluster) execute(stdin string, attributes *syscall.SysProcAttr, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	command := exec.CommandContext(ctx, c.mend, args...)
	command.Env = append(os.Environ(), "MEND_KUBECONFIG="+c.kubeconfig(), "HOME="+c.dir)
	command.Stdin = strings.NewReader(stdin)
	command.WaitDelay = 5 * time.Second
	command.SysProcAttr = attributes
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return result{out.String(), errs.String() + err.Error(), -1}
	}
	return result{out.String(), errs.String(), command.ProcessState.ExitCode()}
}

// eventually waits for a state, which holds once reached returns "". What it
// returned last explains a state that never came.
func (c *cluster) eventually(what string, reached func() string) {
	c.t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(stateLimit)
	for {
		why := reached()
		if why == "" {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			c.t.Fatalf("%s: not within %s: %s", what, stateLimit, why)
		}
	}
}

// want is a condition for eventually.
func want(holds bool, format string, args ...any) string {
	if holds {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

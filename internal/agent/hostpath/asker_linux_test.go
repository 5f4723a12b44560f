package hostpath

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"mend/internal/agent/volume"
	"mend/internal/testkit/deadmount"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ChildCommand {
		os.Exit(Child(os.Args[2:], os.Stdout))
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("mounting needs root")
	}
	t.Skip("mounting needs root")
}

// asker counts the children that it starts.
func asker(limit time.Duration) (a *Asker, started *atomic.Int32) {
	started = new(atomic.Int32)
	a = NewAsker(clock.RealClock{})
	a.limit, a.child = limit, func(args ...string) *exec.Cmd {
		started.Add(1)
		return self(args...)
	}
	return a, started
}

func hostPath(kind v1.HostPathType, path string) *v1.HostPathVolumeSource {
	return &v1.HostPathVolumeSource{Type: &kind, Path: path}
}

// underWay counts the children that have not ended.
func (a *Asker) underWay() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, known := range a.paths {
		n += len(known.asks)
	}
	return n
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatal("never: " + what)
		}
	}
}

func TestAnswersAreThoseOfTheVolumesRoom(t *testing.T) {
	a, started := asker(Limit)
	dir := t.TempDir()
	made := filepath.Join(dir, "made")
	if err := a.Check(t.Context(), hostPath(v1.HostPathDirectoryOrCreate, made)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(made); err != nil || !info.IsDir() {
		t.Fatal(info, err)
	}
	want := "hostPath type check failed: " + made + " is not a file, it's a Directory"
	if err := a.Check(t.Context(), hostPath(v1.HostPathFile, made)); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	before := started.Load()
	if err := a.Answers(t.Context(), made); err != nil || started.Load() != before {
		t.Errorf("a path that has just answered: %v, after %d more questions", err, started.Load()-before)
	}
	if err := a.Answers(t.Context(), filepath.Join(dir, "none")); err != nil {
		t.Errorf("that there is nothing is an answer: %v", err)
	}
}

func TestSubPathsAreMountedForTheParent(t *testing.T) {
	needRoot(t)
	a, _ := asker(Limit)
	dir, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
	t.Cleanup(func() {
		if err := (volume.Kernel{}).UnmountBelow(target); err != nil {
			t.Error(err)
		}
	})
	path, err := a.SubPath(t.Context(), dir, "a/b", target)
	if err != nil || path != target {
		t.Fatal(path, err)
	}
	if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a/b/f")); err != nil {
		t.Error(err)
	}
	if _, err := a.SubPath(t.Context(), dir, "../b", target); err == nil {
		t.Error("a sub-path leads outside")
	}
}

// TestAPathThatHangs: each try ends in time and names the mount, and however many there
// are, one child waits; it ends with the file system, and then the path is good again.
func TestAPathThatHangs(t *testing.T) {
	needRoot(t)
	const limit = 2 * time.Second // a raced child starts slowly
	a, started := asker(limit)
	m := deadmount.New(t, t.TempDir())
	m.Die()
	path := filepath.Join(m.Dir, "x")
	want := fmt.Sprintf("hostPath %s did not answer within 2s: the file system at %s (fuse of deadmount) hangs; bring back what serves it, or end it with umount -f", path, m.Dir)
	var tries sync.WaitGroup
	for range 20 {
		tries.Go(func() {
			err := a.Check(t.Context(), hostPath(v1.HostPathDirectory, path))
			if !errors.Is(err, volume.ErrNoAnswer) || err.Error() != want {
				t.Errorf("got %v\nwant %s", err, want)
			}
		})
	}
	tries.Wait()
	if n := started.Load(); n != 1 {
		t.Errorf("%d children were started, want 1", n)
	}
	for _, sub := range []string{"a", "b"} {
		if _, err := a.SubPath(t.Context(), path, sub, filepath.Join(t.TempDir(), "t")); !errors.Is(err, volume.ErrNoAnswer) {
			t.Errorf("sub-path: %v", err)
		}
	}
	if n := started.Load(); n != 1 || a.underWay() != 1 {
		t.Errorf("%d children were started and %d wait, want 1 and 1", n, a.underWay())
	}
	m.End()
	eventually(t, "the child has ended", func() bool { return a.underWay() == 0 })
	// On a busy machine a child alone may take longer than the limit here.
	eventually(t, "the path is good", func() bool {
		return a.Check(t.Context(), hostPath(v1.HostPathDirectoryOrCreate, path)) == nil
	})
}

// TestAChildThatCanBeEndedEnds by itself, also if nobody waits for it any more.
func TestAChildThatCanBeEndedEnds(t *testing.T) {
	needRoot(t)
	a, _ := asker(200 * time.Millisecond)
	m := deadmount.NewKillable(t, t.TempDir())
	if err := a.Answers(t.Context(), m.Dir); !errors.Is(err, volume.ErrNoAnswer) || !strings.Contains(err.Error(), m.Dir) {
		t.Errorf("got %v", err)
	}
	if n := a.underWay(); n != 0 {
		t.Errorf("%d children are left", n)
	}
}

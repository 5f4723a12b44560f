package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSnapshot saves the state under load, loses it, and gets it back.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start("--simulate", "1")
	c.mustKubectl("create", "configmap", "kept", "--from-literal=of=the-snapshot")
	file := filepath.Join(c.dir, "mine.db")
	for _, args := range [][]string{{"snapshot", "save"}, {"snapshot", "save", file}} {
		got := c.run(append(args, "--data-dir", c.data())...)
		path := strings.TrimSpace(got.out)
		if info, err := os.Stat(path); got.code != 0 || err != nil || info.Mode() != 0o600 {
			t.Fatalf("mend %v: %+v; %v", args, got, err)
		}
	}
	if got := c.run("snapshot", "save", file, "--data-dir", c.data()); got.code == 0 || !strings.Contains(got.err, "is there already") {
		t.Errorf("a second save: %+v", got)
	}
	list := c.run("snapshot", "list", "--data-dir", c.data())
	if !regexp.MustCompile(`(?m)^\S+-manual\.db +\d+ KiB +\S+ +ok$`).MatchString(list.out) {
		t.Errorf("list: %+v", list)
	}
	c.mustKubectl("delete", "configmap", "kept")
	if got := c.run("snapshot", "restore", file, "--data-dir", c.data()); got.code == 0 || !strings.Contains(got.err, "end it first") {
		t.Errorf("restore beside a running mend: %+v", got)
	}
	if got := c.run("down", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("down: %+v", got)
	}
	if got := c.run("snapshot", "save", filepath.Join(c.dir, "stopped.db"), "--data-dir", c.data()); got.code != 0 {
		t.Errorf("save of a stopped mend: %+v", got)
	}
	cut := filepath.Join(c.dir, "cut.db")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := c.run("snapshot", "restore", cut, "--data-dir", c.data()); got.code == 0 || !strings.Contains(got.err, "checksum") {
		t.Errorf("restore of half a snapshot: %+v", got)
	}
	if got := c.run("snapshot", "restore", file, "--data-dir", c.data()); got.code != 0 || !strings.Contains(got.out, "is kept in") {
		t.Fatalf("restore: %+v", got)
	}
	c.start("--simulate", "1")
	if got := c.mustKubectl("get", "configmap", "kept", "-o", "jsonpath={.data.of}"); got != "the-snapshot" {
		t.Errorf("after the restore: %q", got)
	}
	c.mustKubectl("create", "deployment", "after", "--image=nginx", "--replicas=2")
	c.mustKubectl("rollout", "status", "deployment/after", "--timeout=60s")
}

// TestBadState: a state that cannot be read is one clear line that names the way out,
// and stays as it is.
func TestBadState(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	up := []string{"up", "--simulate", "1", "--data-dir", c.data(), "--api-port", "0", "--kubeconfig", c.kubeconfig()}
	c.start("--simulate", "1")
	snapshot := strings.TrimSpace(c.run("snapshot", "save", "--data-dir", c.data()).out)
	if got := c.run("down", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("down: %+v", got)
	}
	logs, err := filepath.Glob(filepath.Join(c.data(), logDir, "*.wal"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	for _, tt := range []struct {
		name, file string
		damage     func(path string, whole []byte) error
		want       string
	}{
		{"database overwritten", dbFile, overwrite, "mend snapshot restore"},
		{"database cut short", dbFile, func(path string, whole []byte) error { return os.Truncate(path, 4096+100) }, "mend snapshot restore"},
		{"log overwritten", filepath.Join(logDir, filepath.Base(logs[0])), overwrite, "mend snapshot restore"},
		{"log cut short", filepath.Join(logDir, filepath.Base(logs[0])), func(path string, whole []byte) error {
			return os.WriteFile(path, append(slices.Clone(whole[:8192]), make([]byte, len(whole)-8192)...), 0o600)
		}, "mend snapshot restore"},
		{"log gone", filepath.Join(logDir, filepath.Base(logs[0])), func(path string, _ []byte) error { return os.Remove(path) }, "mend snapshot restore"},
		{"format of a newer mend", "format", func(path string, _ []byte) error {
			return os.WriteFile(path, []byte("mend-data-format 99\n"), 0o600)
		}, "newer mend"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(c.data(), tt.file)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.damage(path, whole); err != nil {
				t.Fatal(err)
			}
			damaged, _ := os.ReadFile(path)
			got := c.run(up...)
			if got.code == 0 || !strings.Contains(got.err, tt.want) || strings.Contains(strings.TrimSpace(got.err), "\n") {
				t.Errorf("up: %+v, want one line with %q", got, tt.want)
			}
			if after, _ := os.ReadFile(path); string(after) != string(damaged) {
				t.Error("the damaged file was changed")
			}
			if got.code == 0 {
				c.run("down", "--data-dir", c.data())
			}
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := overwrite(filepath.Join(c.data(), dbFile), make([]byte, 20480)); err != nil {
		t.Fatal(err)
	}
	if got := c.run("snapshot", "restore", filepath.Base(snapshot), "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("the way out: %+v", got)
	}
	c.start("--simulate", "1")
}

func overwrite(path string, whole []byte) error {
	changed := []byte(strings.Repeat("garbage!", 2560))
	return os.WriteFile(path, append(changed[:min(len(changed), len(whole))], whole[min(len(changed), len(whole)):]...), 0o600)
}

// TestDiskFull fills the file system of the data directory beside running Pods.
func TestDiskFull(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	if err := os.Mkdir(c.data(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", c.data(), "tmpfs", 0, "size=700m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before newCluster's: the purge leaves a mount point, empty
		if got := c.run("down", "--purge", "--data-dir", c.data()); got.code != 0 {
			t.Errorf("mend down --purge: %+v", got)
		}
		if err := unix.Unmount(c.data(), 0); err != nil {
			t.Error(err)
		}
	})
	port := freePort(t)
	c.start("--api-port", port)
	c.mustApply(fmt.Sprintf(restingManifest, 2))
	c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
	c.mustKubectl("rollout", "status", "deployment/roll", "--timeout=120s")
	c.readyPod("talker")
	before := c.resting("app=rest")
	filler := filepath.Join(c.data(), "filler")
	if err := fill(filler); err != nil {
		t.Fatal(err)
	}
	got := c.kubectl("create", "configmap", "refused")
	if got.code == 0 || !strings.Contains(got.err, "the API is read-only") {
		t.Errorf("a write to a full disk: %+v", got)
	}
	if message, healthy := c.component("store"); healthy || !strings.Contains(message, "read-only") {
		t.Errorf("mend status: store: %s", message)
	}
	c.mustKubectl("get", "pods")
	sameFacts(t, "on a full disk", before, c.resting("app=rest"))
	// mend itself may be killed and started meanwhile.
	c.signal(c.mendPID(), unix.SIGKILL)
	c.start("--api-port", port)
	sameFacts(t, "on a full disk, after a kill", before, c.resting("app=rest"))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	c.mustKubectl("create", "configmap", "accepted")
	if message, healthy := c.component("store"); !healthy {
		t.Errorf("mend status with room again: store: %s", message)
	}
	c.mustKubectl("set", "env", "deployment/roll", "ROUND=1")
	c.mustKubectl("rollout", "status", "deployment/roll", "--timeout=120s")
	sameFacts(t, "with room again", before, c.resting("app=rest"))
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
}

// fill writes until there are a few MiB left, as somebody else's program might.
func fill(path string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &stat); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	const left = 8 << 20
	return unix.Fallocate(int(file.Fd()), 0, 0, int64(stat.Bavail)*stat.Bsize-left)
}

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// healthy is a machine on which nothing is in the way.
func healthy() Observed {
	return Observed{
		Wanted:          Wanted{DataDir: "/var/lib/mend", APIAddress: "127.0.0.1:6443", Containers: true, OwnRuntime: true},
		OS:              "linux",
		Root:            true,
		CgroupVersion:   2,
		Controllers:     []string{"cpu", "cpuset", "io", "memory", "pids"},
		FileSystems:     []string{"ext4", "overlay"},
		NetworkFeatures: map[string]error{"bridge": nil, "veth": nil, "nf_tables": nil},
		DiskKnown:       true,
		DiskFree:        10 << 30,
	}
}

func TestExamine(t *testing.T) {
	tests := []struct {
		name   string
		mutate func(*Observed)
		want   []string // a part of each line, in order
	}{
		{"a healthy machine", func(*Observed) {}, nil},
		{"not root", func(o *Observed) { o.Root = false }, []string{"not root: run it with sudo"}},
		{"not root, in a directory of root's", func(o *Observed) { o.Root, o.WriteError = false, syscall.EACCES }, []string{"not root: run it with sudo"}},
		{"not root, and no containers wanted", func(o *Observed) { o.Root, o.Containers = false, false }, nil},
		{"another system", func(o *Observed) { o.OS = "darwin" }, []string{"--simulate 1"}},
		{"port taken", func(o *Observed) { o.PortError = syscall.EADDRINUSE }, []string{"127.0.0.1:6443 is taken"}},
		{"port forbidden", func(o *Observed) { o.PortError = syscall.EACCES }, []string{"cannot be listened on (permission denied)"}},
		{"read-only data directory", func(o *Observed) { o.WriteError = syscall.EROFS }, []string{"read-only file system"}},
		{"full disk", func(o *Observed) { o.DiskFree = 100 << 20 }, []string{"100 MiB are free"}},
		{"full disk below a state that is there", func(o *Observed) { o.DiskFree, o.HasState = 100<<20, true }, nil},
		{"unknown disk", func(o *Observed) { o.DiskKnown, o.DiskFree = false, 0 }, nil},
		{"noexec", func(o *Observed) { o.ExecError = errors.New("x is noexec: remount") }, []string{"x is noexec: remount"}},
		{"no cgroups", func(o *Observed) { o.CgroupVersion, o.Controllers = 0, nil }, []string{"mount -t cgroup2"}},
		{"memory controller off, as on a Raspberry Pi", func(o *Observed) { o.Controllers = []string{"cpu", "cpuset", "pids"} }, []string{"cgroup_enable=memory"}},
		{"v1 needs more controllers", func(o *Observed) { o.CgroupVersion = 1 }, []string{"cpuacct", "devices", "freezer"}},
		{"no overlay", func(o *Observed) { o.FileSystems = nil }, []string{"modprobe overlay"}},
		{"no overlay, but a runtime of the user's", func(o *Observed) { o.FileSystems, o.OwnRuntime = nil, false }, nil},
		{"no nftables", func(o *Observed) { o.NetworkFeatures["nf_tables"] = syscall.EOPNOTSUPP }, []string{"modprobe nf_tables"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := healthy()
			tt.mutate(&seen)
			got := Examine(seen)
			if len(got) != len(tt.want) {
				t.Fatalf("problems = %v, want %d", got, len(tt.want))
			}
			for i, want := range tt.want {
				if line := got[i].String(); !strings.Contains(line, want) || strings.Contains(line, "\n") {
					t.Errorf("line %d = %q, want one line with %q", i, line, want)
				}
			}
		})
	}
}

func TestCgroupsAreReadInBothVersions(t *testing.T) {
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v2, v1 := t.TempDir(), t.TempDir()
	write(filepath.Join(v2, "cgroup.controllers"), "cpu memory pids\n")
	version, controllers := cgroups(v2, "/nonexistent")
	if diff := cmp.Diff([]string{"cpu", "memory", "pids"}, controllers); version != 2 || diff != "" {
		t.Errorf("v2: version %d, %s", version, diff)
	}
	write(filepath.Join(v1, "self"), "4:memory:/\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n")
	write(filepath.Join(v1, "memory", "tasks"), "")
	write(filepath.Join(v1, "cpu", "tasks"), "")
	version, controllers = cgroups(v1, filepath.Join(v1, "self"))
	if diff := cmp.Diff([]string{"cpu", "memory"}, controllers); version != 1 || diff != "" {
		t.Errorf("v1: version %d, %s", version, diff)
	}
}

package containerd_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// foreignPlaces are where containerd, runc and CNI plugins write when left alone. None
// of them may change.
var foreignPlaces = []string{
	"/etc/cni", "/opt/cni", "/etc/containerd", "/opt/containerd", "/run/containerd", "/run/netns", "/run/runc",
	"/var/lib/cni", "/var/lib/containerd", "/var/lib/nri", "/var/run/nri", "/tmp/containerd-mount",
}

// hostState lists what is on this machine that carries an instance's marks (its id, or
// its data directory), and all that lies in the foreign places. What other instances
// do at the same time is not in it.
func hostState(t *testing.T, id, dataDir string) []string {
	t.Helper()
	ours := func(s string) bool { return strings.Contains(s, id) || strings.Contains(s, dataDir) }
	all := slices.Concat(processes(t, ours), mounts(t, ours), networkState(t, ours), cgroups(t, id))
	for _, place := range append(slices.Clone(foreignPlaces), dataDir, filepath.Join("/run/mend", id)) {
		for _, f := range filesBelow(place) {
			all = append(all, "file "+f)
		}
	}
	sort.Strings(all)
	return all
}

func mounts(t *testing.T, ours func(string) bool) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		if ours(line) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found
}

// networkState lists interfaces, the routes over them, and nftables tables.
func networkState(t *testing.T, ours func(string) bool) []string {
	t.Helper()
	var found []string
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if !ours(l.Attrs().Name) {
			continue
		}
		found = append(found, "link "+l.Attrs().Name)
		routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			found = append(found, fmt.Sprintf("route %v", r))
		}
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if ours(table.Name) {
			found = append(found, "table "+table.Name)
		}
	}
	return found
}

// cgroups lists the instance's, of both versions, and the one that CRI uses unasked.
func cgroups(t *testing.T, id string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/*" + id + "*", "/sys/fs/cgroup/*/*" + id + "*", "/sys/fs/cgroup/k8s.io", "/sys/fs/cgroup/*/k8s.io"} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			found = append(found, "cgroup "+g)
		}
	}
	return found
}

// processes lists those whose program, arguments or cgroups carry our marks.
func processes(t *testing.T, ours func(string) bool) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	self := strconv.Itoa(os.Getpid())
	var found []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil || e.Name() == self {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if ours(exe) || ours(string(args)) || ours(string(groups)) {
			found = append(found, fmt.Sprintf("process %s %q", e.Name(), args))
		}
	}
	return found
}

func filesBelow(dir string) []string {
	var files []string
	filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			files = append(files, path)
		}
		return nil
	})
	return files
}

// nothingLeft fails when the host's state differs from what it was.
func nothingLeft(t *testing.T, before, after []string) {
	t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("something was left on the host (-before +after):\n%s", diff)
	}
}

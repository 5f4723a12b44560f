package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const waitLimit = 30 * time.Second

// needRoot skips what only root may do; under CI=true that is a failure.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("mounts and cgroups need root")
	}
	t.Skip("mounts and cgroups need root")
}

func mkdir(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(to, unix.MNT_DETACH) })
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestRemoveTreeDeletesLinksAndNotWhatTheyPointTo(t *testing.T) {
	outside := mkdir(t, t.TempDir(), "outside")
	write(t, filepath.Join(outside, "file"))
	dir := mkdir(t, t.TempDir(), "ours")
	write(t, filepath.Join(mkdir(t, dir, "a", "b"), "file"))
	for _, link := range []string{filepath.Join(dir, "link"), filepath.Join(dir, "a", "b", "link")} {
		if err := os.Symlink(outside, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTree(dir); err != nil {
		t.Fatal(err)
	}
	if exists(dir) || !exists(filepath.Join(outside, "file")) {
		t.Errorf("the folder is there: %v, the file that links led to is there: %v", exists(dir), exists(filepath.Join(outside, "file")))
	}
	if err := RemoveTree(dir); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
}

func TestRemoveTreeRefusesALinkInsteadOfAFolder(t *testing.T) {
	outside := mkdir(t, t.TempDir(), "outside")
	link := filepath.Join(t.TempDir(), "ours")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(link); err == nil || !exists(outside) {
		t.Errorf("removing a link gave %v; what it points to is there: %v", err, exists(outside))
	}
}

func TestRemoveTreeRefusesWhileSomethingIsMountedBelow(t *testing.T) {
	needRoot(t)
	outside := mkdir(t, t.TempDir(), "outside")
	write(t, filepath.Join(outside, "file"))
	dir := mkdir(t, t.TempDir(), "ours")
	point := mkdir(t, dir, "volumes", "data")
	bind(t, outside, point)
	err := RemoveTree(dir)
	if err == nil || !strings.Contains(err.Error(), point) {
		t.Errorf("removing a folder with a mount in it gave %v, want an error that names %s", err, point)
	}
	if !exists(filepath.Join(outside, "file")) {
		t.Fatal("the mounted file was deleted")
	}
	if err := Unmount(dir); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(dir); err != nil {
		t.Fatal(err)
	}
	if exists(dir) || !exists(filepath.Join(outside, "file")) {
		t.Errorf("after unmounting: folder there %v, outside file there %v", exists(dir), exists(filepath.Join(outside, "file")))
	}
}

func TestRemoveTreeEmptiesAFolderThatIsAFileSystemOfItsOwn(t *testing.T) {
	needRoot(t)
	dir := mkdir(t, t.TempDir(), "ours")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	write(t, filepath.Join(mkdir(t, dir, "a"), "file"))
	if err := RemoveTree(dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the file system holds %v, %v; want it empty and mounted", entries, err)
	}
}

func TestUnmountTakesNestedAndStackedMounts(t *testing.T) {
	needRoot(t)
	outside := mkdir(t, t.TempDir(), "outside")
	mkdir(t, outside, "inner")
	dir := mkdir(t, t.TempDir(), "ours")
	point := mkdir(t, dir, "a")
	bind(t, outside, point)
	bind(t, outside, point)                         // on top
	bind(t, outside, filepath.Join(point, "inner")) // within
	beside := mkdir(t, filepath.Dir(dir), "ours-not")
	bind(t, outside, beside)
	if err := Unmount(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := mountsBelow(dir); err != nil || len(left) > 0 {
		t.Errorf("still mounted: %v, %v", left, err)
	}
	if left, err := mountsBelow(filepath.Dir(beside)); err != nil || len(left) != 1 || left[0] != beside {
		t.Errorf("mounted beside: %v, %v; want only %s", left, err, beside)
	}
}

func TestRemoveEmptyTakesOnlyTheNamedFolder(t *testing.T) {
	parent := t.TempDir()
	full, empty := mkdir(t, parent, "a", "mend"), mkdir(t, parent, "b", "mend")
	write(t, filepath.Join(full, "file"))
	for _, dir := range []string{full, empty, filepath.Join(parent, "gone", "mend"), filepath.Dir(empty)} {
		if err := RemoveEmpty(dir, "mend"); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if !exists(full) || exists(empty) || !exists(filepath.Dir(empty)) {
		t.Errorf("there are: full %v, empty %v, its parent %v; want true, false, true", exists(full), exists(empty), exists(filepath.Dir(empty)))
	}
}

// makeCgroup makes a cgroup in every hierarchy that lets us.
func makeCgroup(t *testing.T, group string) (procs []string) {
	t.Helper()
	roots, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range roots {
		if os.MkdirAll(filepath.Join(root, group), 0o755) == nil {
			procs = append(procs, filepath.Join(root, group, "cgroup.procs"))
		}
	}
	if len(procs) == 0 {
		t.Fatalf("no cgroup %s could be made", group)
	}
	return procs
}

func TestACgroupIsKilledAndRemovedWithAllBelow(t *testing.T) {
	needRoot(t)
	group := fmt.Sprintf("/mend-test-%d", os.Getpid())
	t.Cleanup(func() { RemoveCgroup(group) })
	makeCgroup(t, group+"/pod/empty")
	inner := makeCgroup(t, group+"/pod/container")
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })
	joined := 0
	for _, procs := range inner {
		if os.WriteFile(procs, []byte(fmt.Sprint(cmd.Process.Pid)), 0) == nil {
			joined++
		}
	}
	if joined == 0 {
		t.Fatal("the process could join no cgroup")
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := KillCgroup(ctx, group); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ProcessState.String() != "signal: killed" {
			t.Errorf("the process ended with %v, want it killed", err)
		}
	case <-ctx.Done():
		t.Fatal("the process is still there")
	}
	if err := RemoveCgroup(group); err != nil {
		t.Fatal(err)
	}
	if left, err := tree(group); err != nil || len(left) > 0 {
		t.Errorf("cgroups left: %v, %v", left, err)
	}
	if err := errors.Join(KillCgroup(ctx, group), RemoveCgroup(group)); err != nil {
		t.Errorf("a cgroup that is gone: %v", err)
	}
}

func TestNamesThatAreNoCgroupOfOursAreRefused(t *testing.T) {
	for _, group := range []string{"", "/", "/mend-a/../.."} {
		if err := KillCgroup(t.Context(), group); err == nil {
			t.Errorf("killing the cgroup %q was not refused", group)
		}
		if err := RemoveCgroup(group); err == nil {
			t.Errorf("removing the cgroup %q was not refused", group)
		}
	}
}

func TestKillProgramsKillsByFileAndNotByName(t *testing.T) {
	ours, other := mkdir(t, t.TempDir(), "bin"), mkdir(t, t.TempDir(), "bin")
	start := func(dir string) chan error {
		from, err := exec.LookPath("sleep")
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "shim")
		if err := os.WriteFile(program, b, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { cmd.Process.Kill() })
		return ended
	}
	ourEnd, otherEnd := start(ours), start(other)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := KillPrograms(ctx, ours); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ourEnd:
	case <-ctx.Done():
		t.Error("our program still runs")
	}
	select {
	case err := <-otherEnd:
		t.Errorf("another folder's program of the same name ended: %v", err)
	default:
	}
}

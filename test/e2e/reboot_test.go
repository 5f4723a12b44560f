package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mend/internal/network"
	"mend/internal/runtime/cleanup"
)

// instance is the id that all names of this cluster on the host carry.
func (c *cluster) instance() string {
	c.t.Helper()
	id, err := os.ReadFile(filepath.Join(c.data(), "instance"))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(id))
}

func (c *cluster) runDir() string { return filepath.Join("/run/mend", c.instance()) }

// TestReboot ends everything of an instance at once and takes away what a boot does
// not bring back: each Pod runs again, once, and what it held before is free.
func TestReboot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		takes func(c *cluster)
	}{
		{"the run directory is a tmpfs", func(c *cluster) { c.must(cleanup.RemoveTree(c.runDir())) }},
		// The kernel's boot id cannot be changed here, so what was written down of it is.
		{"the run directory is on a disk", func(c *cluster) {
			kernels, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
			c.must(err)
			const another = "00000000-0000-0000-0000-000000000000"
			ipam := filepath.Join(c.runDir(), "ipam")
			c.must(errors.Join(
				os.WriteFile(filepath.Join(c.runDir(), "boot"), []byte(another), 0o600),
				os.Rename(filepath.Join(ipam, strings.TrimSpace(string(kernels))), filepath.Join(ipam, another)),
			))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			needRoot(t)
			c := newCluster(t)
			c.start()
			replicas := size(t, 3, 5, 20)
			c.mustKubectl("create", "deployment", "rest", "--image=mend.local/web:1.0", fmt.Sprintf("--replicas=%d", replicas))
			c.mustKubectl("rollout", "status", "deployment/rest", "--timeout=120s")
			before := c.resting("app=rest")
			c.powerOff()
			tt.takes(c)
			c.start()
			c.eventually("each Pod was restarted once and is Ready", func() string {
				after := c.resting("app=rest")
				for name, is := range after {
					if before[name].UID != is.UID || !strings.HasSuffix(is.Containers, " 1;") || !strings.HasPrefix(is.Ready, "True") {
						return fmt.Sprintf("Pod %s was %+v, is %+v", name, before[name], is)
					}
				}
				return want(len(after) == len(before), "%d Pods, before %d", len(after), len(before))
			})
			c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
			c.eventually("no address and no cgroup is there but those of the Pods", func() string { return c.onlyTheirs(replicas) })
			after := c.resting("app=rest")
			if got := c.run("down", "--keep-pods", "--data-dir", c.data()); got.code != 0 {
				t.Fatalf("mend down --keep-pods: %+v", got)
			}
			c.start()
			c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
			sameFacts(t, "after the next start", after, c.resting("app=rest"))
		})
	}
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// powerOff ends all processes of the instance, and with them mounts, interfaces and
// rules. The cgroups and, for the caller to deal with, the run directory stay.
func (c *cluster) powerOff() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stateLimit)
	defer cancel()
	// All stop before any ends, so that none sees another end and acts on it.
	mend, containerd := c.mendPID(), c.containerdPID()
	c.must(errors.Join(unix.Kill(mend, unix.SIGSTOP), unix.Kill(containerd, unix.SIGSTOP)))
	c.signal(mend, unix.SIGKILL)
	c.signal(containerd, unix.SIGKILL)
	c.must(errors.Join(
		cleanup.KillPrograms(ctx, filepath.Join(c.data(), "bin")),
		cleanup.KillCgroup(ctx, "/mend-"+c.instance()),
		cleanup.Unmount(c.runDir()),
		cleanup.Unmount(c.data()),
	))
	// Teardown, which takes interfaces and rules away, also frees the addresses; a power
	// cut does not.
	ipam, aside := filepath.Join(c.runDir(), "ipam"), filepath.Join(c.runDir(), "ipam-of-before")
	c.must(os.Rename(ipam, aside))
	c.must(network.Teardown(ctx, network.Config{InstanceID: c.instance(), DataDir: c.data(), RunDir: c.runDir()}))
	c.must(os.Rename(aside, ipam))
}

// onlyTheirs says whether more addresses are reserved, or Pods' cgroups there, than
// Pods run.
func (c *cluster) onlyTheirs(pods int) string {
	c.t.Helper()
	reserved, err := filepath.Glob(filepath.Join(c.runDir(), "ipam", "*", "*@*@*"))
	c.must(err)
	groups, err := cgroupsOfPods("/mend-" + c.instance())
	c.must(err)
	return want(len(reserved) == pods && groups == pods, "%d addresses and %d cgroups for %d Pods: %v", len(reserved), groups, pods, reserved)
}

// cgroupsOfPods counts the Pods that have a cgroup below parent.
func cgroupsOfPods(parent string) (int, error) {
	found := map[string]bool{}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory"} {
		err := filepath.WalkDir(filepath.Join(root, parent), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), "pod") {
				found[entry.Name()] = true
				return fs.SkipDir
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return len(found), nil
}

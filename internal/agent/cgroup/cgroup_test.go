package cgroup

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mend/internal/agent/podspec"
)

// fake makes a tree whose files exist, as the kernel makes them.
func fake(t *testing.T, unified bool, groups ...string) (*Tree, string) {
	t.Helper()
	root := t.TempDir()
	put := func(path string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if unified {
		put("cgroup.controllers")
	}
	for _, g := range groups {
		if unified {
			for _, f := range []string{"cgroup.subtree_control", "cpu.weight", "cpu.max", "memory.max"} {
				put(g + "/" + f)
			}
			continue
		}
		put("cpu/" + g + "/cpu.shares")
		put("cpu/" + g + "/cpu.cfs_quota_us")
		put("memory/" + g + "/memory.limit_in_bytes")
	}
	tree, err := open(root, "/m")
	if err != nil {
		t.Fatal(err)
	}
	return tree, root
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	have, err := os.ReadFile(path)
	if err != nil || strings.TrimSpace(string(have)) != want {
		t.Errorf("%s: %q (%v), want %q", path, have, err, want)
	}
}

func TestEnsureV1(t *testing.T) {
	tree, root := fake(t, false, "m/podx")
	if tree.Unified() {
		t.Error("taken for v2")
	}
	if err := tree.Ensure("/m/podx", podspec.PodLimits{Shares: 512, QuotaUS: 50000, Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	holds(t, root+"/cpu/m/podx/cpu.shares", "512")
	holds(t, root+"/cpu/m/podx/cpu.cfs_quota_us", "50000")
	holds(t, root+"/memory/m/podx/memory.limit_in_bytes", "1048576")
}

func TestEnsureV2(t *testing.T) {
	tree, root := fake(t, true, ".", "m", "m/podx")
	if err := tree.Ensure("/m/podx", podspec.PodLimits{Shares: 1024, QuotaUS: 50000}); err != nil {
		t.Fatal(err)
	}
	holds(t, root+"/cgroup.subtree_control", "+cpu +memory +pids")
	holds(t, root+"/m/cgroup.subtree_control", "+cpu +memory +pids")
	holds(t, root+"/m/podx/cgroup.subtree_control", "")
	holds(t, root+"/m/podx/cpu.weight", "39")
	holds(t, root+"/m/podx/cpu.max", "50000 100000")
	holds(t, root+"/m/podx/memory.max", "max")
}

func TestOnlyBelowTheParent(t *testing.T) {
	tree, _ := fake(t, false)
	for _, path := range []string{"/", "/other", "/m/../other", "/mx", "m/x", "/m//x"} {
		if err := tree.Ensure(path, podspec.PodLimits{}); err == nil {
			t.Errorf("Ensure(%q) was accepted", path)
		}
		if err := tree.Remove(path); err == nil {
			t.Errorf("Remove(%q) was accepted", path)
		}
	}
	for _, parent := range []string{"", "/", "m", "/m/", "/../m"} {
		if _, err := open(t.TempDir(), parent); err == nil {
			t.Errorf("parent %q was accepted", parent)
		}
	}
}

func TestTheKernelTakesIt(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("cgroups need root")
		}
		t.Skip("cgroups need root")
	}
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	tree, err := Open("/mend-test-" + hex.EncodeToString(b[:]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.RemoveAll(); err != nil {
			t.Error(err)
		}
		for _, h := range tree.hierarchies() {
			if _, err := os.Stat(filepath.Join(h, tree.parent)); !os.IsNotExist(err) {
				t.Errorf("left in %s: %v", h, err)
			}
		}
	})
	path := tree.parent + "/burstable/podx"
	for range 2 {
		if err := tree.Ensure(path, podspec.PodLimits{Shares: 512, QuotaUS: 50000, Memory: 8 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	if tree.Unified() {
		holds(t, filepath.Join(mountPoint, path, "cpu.max"), "50000 100000")
	} else {
		holds(t, filepath.Join(mountPoint, "cpu", path, "cpu.cfs_quota_us"), "50000")
		holds(t, filepath.Join(mountPoint, "memory", path, "memory.limit_in_bytes"), "8388608")
	}
	if err := tree.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := tree.Remove(path); err != nil {
		t.Errorf("removed again: %v", err)
	}
}

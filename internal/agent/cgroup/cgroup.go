package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"mend/internal/agent/podspec"
)

const mountPoint = "/sys/fs/cgroup"

// Controllers a Pod's cgroup is given on v2.
const wanted = "+cpu +memory +pids"

// Tree is the part of the host's cgroups that belongs to this agent.
type Tree struct {
	root    string
	parent  string // "/mend-<id>"
	unified bool
}

// Open looks at how cgroups are mounted. parent is the directory, relative to the
// top, that everything happens below.
func Open(parent string) (*Tree, error) { return open(mountPoint, parent) }

func open(root, parent string) (*Tree, error) {
	if filepath.Clean(parent) != parent || parent == "/" || !strings.HasPrefix(parent, "/") {
		return nil, fmt.Errorf("cgroup parent %q must be a clean absolute path below /", parent)
	}
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return &Tree{root: root, parent: parent, unified: err == nil}, nil
}

// Unified says whether the host has cgroup v2 only.
func (t *Tree) Unified() bool { return t.unified }

// Ensure makes the cgroup at path (relative to the top, below the parent) with
// these limits; it may be repeated.
func (t *Tree) Ensure(path string, limits podspec.PodLimits) error {
	if err := t.check(path); err != nil {
		return err
	}
	if t.unified {
		return t.ensureV2(path, limits)
	}
	return t.ensureV1(path, limits)
}

func (t *Tree) check(path string) error {
	if filepath.Clean(path) != path || (path != t.parent && !strings.HasPrefix(path, t.parent+"/")) {
		return fmt.Errorf("cgroup %q is not below %q", path, t.parent)
	}
	return nil
}

func (t *Tree) ensureV1(path string, limits podspec.PodLimits) error {
	cpu, memory := filepath.Join(t.root, "cpu", path), filepath.Join(t.root, "memory", path)
	for _, dir := range []string{cpu, memory} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	quota := limits.QuotaUS
	if quota == 0 {
		quota = -1
	}
	bytes := limits.Memory
	if bytes == 0 {
		bytes = -1
	}
	return errors.Join(
		write(cpu, "cpu.shares", strconv.FormatInt(limits.Shares, 10)),
		write(cpu, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)),
		write(memory, "memory.limit_in_bytes", strconv.FormatInt(bytes, 10)),
	)
}

func (t *Tree) ensureV2(path string, limits podspec.PodLimits) error {
	dir := t.root
	for _, part := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		if err := write(dir, "cgroup.subtree_control", wanted); err != nil {
			return err
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
	}
	quota, bytes := "max 100000", "max"
	if limits.QuotaUS > 0 {
		quota = strconv.FormatInt(limits.QuotaUS, 10) + " 100000"
	}
	if limits.Memory > 0 {
		bytes = strconv.FormatInt(limits.Memory, 10)
	}
	return errors.Join(
		write(dir, "cpu.weight", strconv.FormatInt(weight(limits.Shares), 10)),
		write(dir, "cpu.max", quota),
		write(dir, "memory.max", bytes),
	)
}

// weight maps shares (2…262144) to cpu.weight (1…10000), linearly, as the OCI
// runtimes long did: 2 → 1, 1024 → 39.
func weight(shares int64) int64 { return 1 + (shares-2)*9999/262142 }

// write sets one value. A value that already stands is not written: the kernel
// refuses some writes of the same value while children exist.
func write(dir, name, value string) error {
	path := filepath.Join(dir, name)
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Remove removes the cgroup at path and those below it, in every hierarchy. One
// that still has processes is an error; one that is gone already is not.
func (t *Tree) Remove(path string) error {
	if err := t.check(path); err != nil {
		return err
	}
	var problems []error
	for _, hierarchy := range t.hierarchies() {
		problems = append(problems, removeTree(filepath.Join(hierarchy, path)))
	}
	return errors.Join(problems...)
}

// RemoveAll removes everything, the parent included.
func (t *Tree) RemoveAll() error { return t.Remove(t.parent) }

func (t *Tree) hierarchies() []string {
	if t.unified {
		return []string{t.root}
	}
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		// Links ("cpu" → "cpu,cpuacct") name a hierarchy a second time.
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(t.root, e.Name()))
		}
	}
	return dirs
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var problems []error
	for _, e := range entries {
		if e.IsDir() {
			problems = append(problems, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
		problems = append(problems, fmt.Errorf("remove cgroup %s: %w", dir, err))
	}
	return errors.Join(problems...)
}

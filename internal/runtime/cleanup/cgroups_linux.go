package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where both versions of cgroups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// hierarchies are the roots of the cgroup trees: one folder per controller with
// version 1, the mount itself with version 2.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	var roots []string
	for _, e := range entries {
		if e.IsDir() { // cpu,cpuacct and the like have links beside them
			roots = append(roots, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return roots, nil
}

// tree lists a cgroup and those below it in every hierarchy, parents first.
func tree(group string) ([]string, error) {
	if group == "" || group == "/" || strings.Contains(group, "..") {
		return nil, fmt.Errorf("%q is no cgroup of ours", group)
	}
	roots, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join(root, group), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone while we looked
			}
			if err == nil && e.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list cgroup %s: %w", group, err)
		}
	}
	return dirs, nil
}

// KillCgroup kills every process in a cgroup and below it, and returns when none is
// left. The cgroup may not exist. ctx bounds the wait.
func KillCgroup(ctx context.Context, group string) error {
	for {
		dirs, err := tree(group)
		if err != nil {
			return err
		}
		alive := 0
		for _, dir := range dirs {
			pids, err := members(dir)
			if err != nil {
				return err
			}
			alive += len(pids)
			for _, pid := range pids {
				if err := killMember(dir, pid); err != nil {
					return err
				}
			}
		}
		if alive == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes of cgroup %s do not end, as while a file system hangs that they use: %w", alive, group, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func members(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // gone, or a threaded cgroup, whose parent lists its processes
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("unexpected content of %s/cgroup.procs: %q", dir, field)
		}
		if pid > 0 { // 0 stands for a process of another pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killMember kills a process if it is still a member once a pidfd holds it.
func killMember(dir string, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	now, err := members(dir)
	if err != nil {
		return err
	}
	for _, m := range now {
		if m == pid {
			return killPidfd(fd, pid)
		}
	}
	return nil
}

func killPidfd(fd, pid int) error {
	err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// RemoveCgroup removes an empty cgroup and those below it from every hierarchy. It may
// not exist.
func RemoveCgroup(group string) error {
	dirs, err := tree(group)
	if err != nil {
		return err
	}
	var failed error
	for i := len(dirs) - 1; i >= 0; i-- { // children first
		if err := removeEmpty(dirs[i]); err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove cgroup %s: %w", dirs[i], err))
		}
	}
	return failed
}

// removeEmpty retries for a moment: a killed process leaves its cgroup a little after
// it has ended.
func removeEmpty(dir string) error {
	var err error
	for range 200 {
		err = unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return err
}

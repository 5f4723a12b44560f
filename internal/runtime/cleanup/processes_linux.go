package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// KillPrograms kills every process whose program file lies in dir, and returns when
// none is left. Each is given a moment to reap children that have ended: not every
// machine's first process does it for them. ctx bounds the wait.
func KillPrograms(ctx context.Context, dir string) error {
	dir, err := realDir(dir)
	if err != nil || dir == "" {
		return err
	}
	if err := awaitReaped(ctx, dir); err != nil {
		return err
	}
	for {
		pids, err := ProgramsBelow(dir)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := killProgram(pid, dir); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of %s do not end: %w", pids, dir, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// reapLimit is how long a program may take to reap: it does it at once, or never.
const reapLimit = 2 * time.Second

// awaitReaped waits until the programs of dir have no children left but one another.
// The children have been killed; they are on their way to be zombies, or are.
func awaitReaped(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, reapLimit)
	defer cancel()
	for {
		pids, err := ProgramsBelow(dir)
		if err != nil {
			return err
		}
		parents := map[int]bool{}
		for _, pid := range pids {
			parents[pid] = true
		}
		left, err := hasChildren(parents)
		if err != nil || !left {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// hasChildren reports whether a process that is no parent itself has one of them.
func hasChildren(parents map[int]bool) (bool, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || parents[pid] {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // gone
		}
		// pid (command) state parent …: the command may hold anything.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil && parents[parent] {
			return true, nil
		}
	}
	return false, nil
}

// ProgramsBelow lists the processes that run a program file below dir. Zombies have
// none and are not listed.
func ProgramsBelow(dir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && runsBelow(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// runsBelow is false for kernel threads and for processes that have just ended.
func runsBelow(pid int, dir string) bool {
	exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	return err == nil && strings.HasPrefix(exe, dir+"/")
}

func killProgram(pid int, dir string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !runsBelow(pid, dir) {
		return nil // the pid was handed on
	}
	return killPidfd(fd, pid)
}

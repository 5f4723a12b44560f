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
// none is left. ctx bounds the wait.
func KillPrograms(ctx context.Context, dir string) error {
	dir, err := realDir(dir)
	if err != nil || dir == "" {
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

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const waitLimit = 30 * time.Second

// startPause compiles pause and runs it as the first process of a process namespace,
// as in a Pod.
func startPause(t *testing.T) *exec.Cmd {
	t.Helper()
	skip := func(reason string) {
		if os.Getenv("CI") == "true" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	if os.Geteuid() != 0 {
		skip("a process namespace needs root")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		skip("pause cannot be compiled: no C compiler (make -C runtime build-deps)")
	}
	program := filepath.Join(t.TempDir(), "pause")
	out, err := exec.Command(cc, "-Os", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-pie", "-no-pie",
		"-Wall", "-Wextra", "-Werror", "-o", program, "../pause/pause.c").CombinedOutput()
	if err != nil {
		t.Fatalf("compile pause.c: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	for !holds() {
		select {
		case <-limit.C:
			t.Fatalf("waited %v for %s", waitLimit, what)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestPauseEndsAtOnceWhenAsked(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := startPause(t)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		eventually(t, fmt.Sprintf("pause to end after %v", sig), func() bool {
			// Sent again and again: the kernel drops it until pause has blocked it.
			if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("after %v it ended with %v, want exit code 0", sig, err)
				}
				return true
			default:
				return false
			}
		})
	}
}

func TestPauseReapsOrphans(t *testing.T) {
	cmd := startPause(t)
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for range 3 {
		orphan(t, cmd.Process.Pid)
	}
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	if _, err := os.ReadFile(children); errors.Is(err, os.ErrNotExist) {
		t.Skip("this kernel does not list children")
	}
	eventually(t, "pause to reap its orphans", func() bool {
		b, err := os.ReadFile(children)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b)) == ""
	})
}

// orphan runs a process in pause's namespace whose parent ends first.
func orphan(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/pid", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: children of this thread go elsewhere
		if err := unix.Setns(fd, unix.CLONE_NEWPID); err != nil {
			done <- err
			return
		}
		done <- exec.Command("sh", "-c", "sleep 0.05 >/dev/null 2>&1 & exit 0").Run()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

package containerd

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestStartTimeIsFoundBehindAnyCommandName(t *testing.T) {
	const rest = " S 1 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 987654 1 2 3\n"
	for _, stat := range []string{"5 (web)" + rest, "5 (a b)" + rest, "5 (x) S 1)" + rest, "5 ())" + rest} {
		if got, err := parseStartTime(stat); err != nil || got != 987654 {
			t.Errorf("parseStartTime(%q) is %d, %v", stat, got, err)
		}
	}
	for _, stat := range []string{"", "5 (web)", "5 (web) S 1 2 3"} {
		if got, err := parseStartTime(stat); err == nil {
			t.Errorf("parseStartTime(%q) is %d, want an error", stat, got)
		}
	}
}

// sleeper starts a process that only waits, and returns its record.
func sleeper(t *testing.T, program string, args ...string) (record, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(program, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	return record{PID: cmd.Process.Pid, Start: start, BootID: boot}, cmd
}

func TestARecordFindsItsProcessAndNoOther(t *testing.T) {
	rec, cmd := sleeper(t, "sleep", "600")
	p, err := rec.find()
	if err != nil {
		t.Fatalf("the running process was not found: %v", err)
	}
	p.close()
	for what, change := range map[string]func(*record){
		"another start time": func(r *record) { r.Start++ },
		"another boot":       func(r *record) { r.BootID = "x" },
		"no pid":             func(r *record) { r.PID = 0 },
	} {
		other := rec
		change(&other)
		if p, err := other.find(); !errors.Is(err, errGone) {
			t.Errorf("%s: found %v, %v; want %v", what, p, err, errGone)
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	if p, err := rec.find(); !errors.Is(err, errGone) {
		t.Errorf("after its end: found %v, %v; want %v", p, err, errGone)
	}
}

func TestEndKillsWhatDoesNotEndByItself(t *testing.T) {
	for what, tc := range map[string]struct {
		script string
		want   unix.Signal
	}{
		"a polite process": {"exec sleep 600", unix.SIGTERM},
		"a stubborn one":   {"trap '' TERM; echo ready; while :; do sleep 600; done", unix.SIGKILL},
	} {
		t.Run(what, func(t *testing.T) {
			rec, cmd := sleeper(t, "sh", "-c", tc.script)
			p, err := rec.find()
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			awaitTrap(t, cmd.Process.Pid, tc.want == unix.SIGKILL)
			if err := p.end(t.Context(), 100*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(interface{ Signal() unix.Signal }).Signal() != tc.want {
				t.Errorf("it ended with %v, want signal %v", err, tc.want)
			}
		})
	}
}

// awaitTrap waits until a shell ignores SIGTERM, which its status file shows.
func awaitTrap(t *testing.T, pid int, ignores bool) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for ignores {
		if ignored, err := ignoresTerm(pid); err != nil {
			t.Fatal(err)
		} else if ignored {
			return
		}
		select {
		case <-limit.C:
			t.Fatal("the shell does not come to ignore SIGTERM")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	rec, _ := sleeper(t, "sleep", "600")
	p, err := rec.find()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.wait(ctx) }()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("wait returned %v, want %v", err, context.Canceled)
		}
	case <-time.After(30 * time.Second):
		t.Error("wait does not end with its context")
	}
}

func TestTheKernelNamesTheListener(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if pid, err := listener(socket); !errors.Is(err, errGone) {
		t.Errorf("without a socket: %d, %v; want %v", pid, err, errGone)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if pid, err := listener(socket); err != nil || pid != os.Getpid() {
		t.Errorf("the listener is %d, %v; want this process, %d", pid, err, os.Getpid())
	}
	l.Close()
	if pid, err := listener(socket); !errors.Is(err, errGone) {
		t.Errorf("with a socket that nobody serves: %d, %v; want %v", pid, err, errGone)
	}
}

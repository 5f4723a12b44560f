package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// record is what a later mend needs to know about the containerd that runs. A process
// is the recorded one if its pid, its start time and the boot are the same.
type record struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot, as /proc/PID/stat has it.
	Start uint64 `json:"start"`
	// BootID is the kernel's boot id.
	BootID string `json:"bootID"`
	// Bundle and Config are hashes of the programs and of the configuration with which
	// it was started: when mend wants others, containerd is started anew.
	Bundle string `json:"bundle"`
	Config string `json:"config"`
}

// process is a running process, held by a pidfd so that its pid cannot come to mean
// another one.
type process struct {
	pid    int
	fd     int
	closed sync.Once
}

var errGone = errors.New("the process is gone")

// openProcess takes hold of a process. It returns errGone when there is none.
func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &process{pid: pid, fd: fd}, nil
}

// find takes hold of the recorded process, or returns errGone.
func (r record) find() (*process, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if r.PID <= 0 || r.BootID != boot {
		return nil, errGone
	}
	p, err := openProcess(r.PID)
	if err != nil {
		return nil, err
	}
	// Read after the pidfd was opened: the pid cannot be handed on in between.
	start, err := startTime(r.PID)
	if err != nil || start != r.Start {
		p.close()
		return nil, errGone
	}
	return p, nil
}

// close lets go of the process. It may be called again.
func (p *process) close() { p.closed.Do(func() { unix.Close(p.fd) }) }

func (p *process) signal(s unix.Signal) error {
	err := unix.PidfdSendSignal(p.fd, s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// wait returns nil when the process has ended, or the context's error. It reaps
// nothing: a child stays a zombie until its parent waits for it.
func (p *process) wait(ctx context.Context) error {
	// One more descriptor ends the poll when the context does.
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create an eventfd: %w", err)
	}
	defer unix.Close(wake)
	stop := context.AfterFunc(ctx, func() { unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	defer func() {
		if !stop() {
			// The callback may be writing: the descriptor must not be closed under it.
			// It writes to an eventfd, which never blocks here.
			<-ctx.Done()
		}
	}()
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", p.pid, err)
		case fds[0].Revents != 0:
			return nil
		}
		return ctx.Err()
	}
}

// end asks a process to end, and kills it when it has not after grace.
func (p *process) end(ctx context.Context, grace time.Duration) error {
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	polite, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.wait(polite) == nil {
		return nil
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancelLast()
	return p.wait(last)
}

// startTime is field 22 of /proc/PID/stat. The command in field 2 may hold anything, so
// fields are counted from its closing parenthesis.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	return parseStartTime(string(b))
}

func parseStartTime(stat string) (uint64, error) {
	const afterCommand = 22 - 3 // field 3 comes first
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= afterCommand {
		return 0, fmt.Errorf("unexpected content of /proc/PID/stat: %q", stat)
	}
	return strconv.ParseUint(fields[afterCommand], 10, 64)
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// listener returns the pid of the process that listens on a unix socket, or errGone
// when none does. The kernel tells it, so no file has to be right.
func listener(socket string) (int, error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return 0, errGone
	}
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Pid), nil
}

func (c Config) readRecord() record {
	var r record
	b, err := os.ReadFile(c.recordFile())
	if err != nil || json.Unmarshal(b, &r) != nil {
		return record{}
	}
	return r
}

// writeRecord replaces the record at once. It is not synced: it is worth nothing in
// another boot.
func (c Config) writeRecord(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := c.recordFile() + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, c.recordFile())
}

// lock takes the instance's supervisor lock, which ends with this process.
func (c Config) lock() (*os.File, error) {
	f, err := os.OpenFile(c.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("the container runtime of instance %s is watched by another mend already", c.InstanceID)
	}
	return f, nil
}

// lockIfThere is lock for an instance that may never have run: it makes no run
// directory and then returns nil.
func (c Config) lockIfThere() (*os.File, error) {
	if _, err := os.Stat(c.RunDir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return c.lock()
}

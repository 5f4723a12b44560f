package main

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// exitWatch is a pidfd: it means this very process, also when its number is given to
// another.
type exitWatch struct{ fd int }

// watchExit holds on to a process. One that has ended already is no error.
func watchExit(pid int) (*exitWatch, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return &exitWatch{fd: -1}, nil
	}
	return &exitWatch{fd: fd}, err
}

// await says whether the process ended within limit. It may return early.
func (w *exitWatch) await(limit time.Duration) (bool, error) {
	if w.fd < 0 {
		return true, nil
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, int(limit.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		err = nil
	}
	return n > 0, err
}

// Close lets go of the process.
func (w *exitWatch) Close() error {
	if w.fd < 0 {
		return nil
	}
	return unix.Close(w.fd)
}

package main

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// exitWatch is a kernel queue that holds one event: the end of this very process, also
// when its number is given to another.
type exitWatch struct {
	queue int
	ended bool
}

// watchExit holds on to a process. One that has ended already is no error.
func watchExit(pid int) (*exitWatch, error) {
	queue, err := unix.Kqueue()
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(queue)
	want := unix.Kevent_t{Fflags: unix.NOTE_EXIT}
	unix.SetKevent(&want, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	_, err = unix.Kevent(queue, []unix.Kevent_t{want}, nil, nil)
	switch {
	case errors.Is(err, unix.ESRCH):
		return &exitWatch{queue: queue, ended: true}, nil
	case err != nil:
		return nil, errors.Join(err, unix.Close(queue))
	}
	return &exitWatch{queue: queue}, nil
}

// await says whether the process ended within limit. It may return early.
func (w *exitWatch) await(limit time.Duration) (bool, error) {
	if w.ended {
		return true, nil
	}
	timeout := unix.NsecToTimespec(limit.Nanoseconds())
	n, err := unix.Kevent(w.queue, nil, make([]unix.Kevent_t, 1), &timeout)
	if errors.Is(err, unix.EINTR) {
		err = nil
	}
	w.ended = n > 0
	return w.ended, err
}

// Close lets go of the process.
func (w *exitWatch) Close() error { return unix.Close(w.queue) }

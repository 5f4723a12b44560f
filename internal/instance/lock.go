package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const lockFile = "lock"

// ErrRunning says that another mend holds the data directory.
var ErrRunning = errors.New("mend is already running on this data directory")

// Holder is what a running mend tells about itself in the lock file.
type Holder struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Server  string    `json:"server"` // URL of the API
	Since   time.Time `json:"since"`
}

// Lock is the exclusive right to a data directory. It ends with the process,
// however that ends.
type Lock struct{ file *os.File }

// Acquire takes the lock, or returns [ErrRunning] at once.
func (i Instance) Acquire() (*Lock, error) {
	file, err := os.OpenFile(i.Path(lockFile), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s is not writable: %w", i.Dir, plain(err))
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrRunning
		}
		return nil, fmt.Errorf("lock of %s: %w", i.Dir, err)
	}
	return &Lock{file: file}, nil
}

// Tell writes what `mend status` and a second `mend up` show of this process.
func (l *Lock) Tell(holder Holder) error {
	data, err := json.Marshal(holder)
	if err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err = l.file.WriteAt(append(data, '\n'), 0)
	return err
}

// Release gives the lock up. The file stays, so that two later starts agree on
// the same one.
func (l *Lock) Release() error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	return l.file.Close()
}

// Running tells who holds the lock. ok is false when nobody does.
func (i Instance) Running() (holder Holder, ok bool, err error) {
	file, err := os.OpenFile(i.Path(lockFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return Holder{}, false, nil
	}
	if err != nil {
		return Holder{}, false, fmt.Errorf("data directory %s cannot be read: %w", i.Dir, plain(err))
	}
	defer file.Close()
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return Holder{}, false, nil // closing the file gives it back
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return Holder{}, false, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return Holder{}, true, err
	}
	// A holder that has not told yet is still a holder.
	_ = json.Unmarshal(text, &holder)
	return holder, true, nil
}

package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/utils/clock"
)

// Limits of a container's log, as kubelet's defaults.
const (
	DefaultMaxSize  = 10 << 20 // bytes of the newest file
	DefaultMaxFiles = 5        // the newest one included
)

const (
	rotatedFormat    = "20060102-150405"
	compressedSuffix = ".gz"
	unfinishedSuffix = ".tmp"
)

// Reopener lets a running container's output go into a new file under the name of
// the old one. RuntimeService of the CRI is one.
type Reopener interface {
	ReopenContainerLog(ctx context.Context, containerID string) error
}

// Rotator rotates logs. Its methods may be called from any goroutine, but for one
// container only one at a time.
type Rotator struct {
	Runtime  Reopener
	MaxSize  int64              // bytes; 0: DefaultMaxSize; negative: never rotate
	MaxFiles int                // 0: DefaultMaxFiles; at least 2
	Clock    clock.PassiveClock // default the real clock
	Log      *slog.Logger       // default slog.Default()
}

// Check rotates a running container's log if it has reached its limit. The agent
// calls it every few seconds; a check costs one stat. A log that is missing, as
// after a crash between two steps, is opened anew.
func (r *Rotator) Check(ctx context.Context, containerID, path string) error {
	limit := r.MaxSize
	if limit == 0 {
		limit = DefaultMaxSize
	}
	if limit < 0 {
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := r.Runtime.ReopenContainerLog(ctx, containerID); err != nil {
			return fmt.Errorf("log %q is missing, and reopening it failed: %w", path, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("failed to stat container log: %w", err)
	case info.Size() < limit:
		return nil
	}
	if err := r.makeRoom(path); err != nil {
		return fmt.Errorf("failed to rotate log %q: %w", path, err)
	}
	return r.rotate(ctx, containerID, path)
}

// makeRoom leaves so many older files, compressed, that with the newest and the one
// that it becomes there are no more than allowed.
func (r *Rotator) makeRoom(path string) error {
	older, unused, err := rotated(path)
	if err != nil {
		return err
	}
	keep := r.MaxFiles
	if keep == 0 {
		keep = DefaultMaxFiles
	}
	excess := max(len(older)-max(keep-2, 0), 0)
	for _, name := range append(unused, older[:excess]...) {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for _, name := range older[excess:] {
		if strings.HasSuffix(name, compressedSuffix) {
			continue
		}
		if err := compress(name); err != nil {
			return err
		}
	}
	return nil
}

// rotated lists the older files of a log, oldest first, and those that are left over
// from a rotation that did not end: unfinished ones, and originals of compressed ones.
func rotated(path string) (older, unused []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), filepath.Base(path)+".") {
			names = append(names, filepath.Join(filepath.Dir(path), entry.Name()))
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if strings.HasSuffix(name, unfinishedSuffix) || slices.Contains(names, name+compressedSuffix) {
			unused = append(unused, name)
		} else {
			older = append(older, name)
		}
	}
	return older, unused, nil
}

// compress replaces a file by its compressed form. Until the last step both the
// original and an unfinished file may be there.
func compress(name string) (err error) {
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	unfinished := name + unfinishedSuffix
	to, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(to)
	zip.Comment = identity(info)
	_, err = io.Copy(zip, from)
	if err := errors.Join(err, zip.Close(), to.Close()); err != nil {
		return errors.Join(fmt.Errorf("failed to compress %q: %w", name, err), os.Remove(unfinished))
	}
	if err := os.Rename(unfinished, name+compressedSuffix); err != nil {
		return err
	}
	return os.Remove(name)
}

// identity names the file behind a description. A compressed file carries that of its
// original, by which a follower that still has the original open finds it.
func identity(info os.FileInfo) string {
	if system, ok := info.Sys().(*syscall.Stat_t); ok {
		// The number alone may come again once the file is removed.
		return fmt.Sprintf("device %d inode %d size %d time %d", system.Dev, system.Ino, info.Size(), info.ModTime().UnixNano())
	}
	return ""
}

// isFile says that name is the file behind a description, or its compressed form.
func isFile(name string, open os.FileInfo) bool {
	file, err := os.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && os.SameFile(info, open) {
		return true
	}
	if !strings.HasSuffix(name, compressedSuffix) {
		return false
	}
	zip, err := gzip.NewReader(file)
	return err == nil && zip.Comment == identity(open)
}

// rotate renames the newest file and lets the runtime open another. The renamed one
// stays uncompressed for a round, since a reader may be in it.
func (r *Rotator) rotate(ctx context.Context, containerID, path string) error {
	now := r.Clock
	if now == nil {
		now = clock.RealClock{}
	}
	to := path + "." + now.Now().UTC().Format(rotatedFormat)
	if _, err := os.Stat(to); err == nil {
		return fmt.Errorf("failed to rotate log %q: %q is there already", path, to)
	}
	if err := os.Rename(path, to); err != nil {
		return fmt.Errorf("failed to rotate log %q to %q: %w", path, to, err)
	}
	if err := r.Runtime.ReopenContainerLog(ctx, containerID); err != nil {
		// Try again next round, with everything under its old name.
		return errors.Join(fmt.Errorf("failed to reopen container log %q: %w", containerID, err), os.Rename(to, path))
	}
	return nil
}

// Remove removes a container's log with all older files.
func Remove(path string) error {
	older, unused, err := rotated(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range append(append(older, unused...), path) {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

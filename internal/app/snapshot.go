package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mend/internal/instance"
	"mend/internal/store"
	"mend/internal/version"
)

const (
	// snapshotEvery and snapshotsKept bound what the schedule keeps: a day.
	snapshotEvery = time.Hour
	snapshotsKept = 24
	// snapshotLimit bounds the writing of one.
	snapshotLimit = 2 * time.Minute

	snapshotSuffix = ".db"
	hourly         = "hourly"
	// versionFile names the mend that used the state last.
	versionFile = "version"
)

// SnapshotFile is one snapshot of the state below the data directory.
type SnapshotFile struct {
	Path    string
	Bytes   int64
	Written time.Time
	// Fault is empty when the checksum fits.
	Fault string
}

func snapshotDir(i instance.Instance) string { return i.Path("snapshots") }

// Snapshots lists what was saved below the data directory, the oldest first, and
// reads each whole for its checksum.
func Snapshots(i instance.Instance) ([]SnapshotFile, error) {
	paths, err := filepath.Glob(filepath.Join(snapshotDir(i), "*"+snapshotSuffix))
	if err != nil {
		return nil, err
	}
	var list []SnapshotFile
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the schedule dropped it meanwhile
		}
		if err != nil {
			return nil, err
		}
		one := SnapshotFile{Path: path, Bytes: info.Size(), Written: info.ModTime()}
		if err := store.Verify(path); err != nil {
			one.Fault = err.Error()
		}
		list = append(list, one)
	}
	return list, nil
}

// SaveStopped saves the state of a mend that does not run. path is empty for a name
// below the data directory.
func SaveStopped(ctx context.Context, i instance.Instance, path string) (string, error) {
	lock, err := i.Acquire()
	if err != nil {
		return "", err
	}
	defer lock.Release()
	opened, err := store.Open(store.Config{DataDir: i.Path("state"), Log: newLog(os.Stderr, false)})
	if err != nil {
		return "", err
	}
	path, err = save(ctx, opened, i, path, "manual")
	return path, errors.Join(err, opened.Close())
}

// RestoreSnapshot makes a snapshot the state of a mend that does not run. name is a
// path, or the name of a file that [Snapshots] lists. It returns where the state of
// before is kept.
func RestoreSnapshot(i instance.Instance, name string) (kept string, err error) {
	lock, err := i.Acquire()
	if err != nil {
		return "", fmt.Errorf("%w: end it first, with mend down or mend down --keep-pods", err)
	}
	defer lock.Release()
	if !strings.ContainsRune(name, filepath.Separator) {
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			name = filepath.Join(snapshotDir(i), name)
		}
	}
	return store.Restore(name, i.Path("state"), time.Now())
}

// Snapshot implements [Control].
func (p *process) Snapshot(ctx context.Context, path string) (string, error) {
	return save(ctx, p.store, p.instance, path, "manual")
}

func save(ctx context.Context, from *store.Store, i instance.Instance, path, why string) (string, error) {
	if path == "" {
		if err := os.MkdirAll(snapshotDir(i), 0o700); err != nil {
			return "", err
		}
		path = filepath.Join(snapshotDir(i), time.Now().UTC().Format("20060102T150405.000Z")+"-"+why+snapshotSuffix)
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotLimit)
	defer cancel()
	return path, from.Save(ctx, path)
}

// snapshotBeforeUpgrade saves the state that another version of mend left, before
// anything writes to it.
func (p *process) snapshotBeforeUpgrade(ctx context.Context) error {
	file := p.instance.Path(versionFile)
	before, err := os.ReadFile(file)
	was := strings.TrimSpace(string(before))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A new state, or one of a mend that did not write its version down.
	case err != nil:
		return err
	case was == version.Version:
		return nil
	default:
		path, err := save(ctx, p.store, p.instance, "", "before-"+filepath.Base(version.Version))
		if err != nil {
			return fmt.Errorf("the state of mend %s cannot be saved before the upgrade: %w", was, err)
		}
		p.log.Info("saved the state before the upgrade", "from", was, "to", version.Version, "snapshot", path)
	}
	return instance.WriteFile(file, []byte(version.Version+"\n"), 0o600)
}

// saveHourly keeps a day of snapshots until ctx ends.
func (p *process) saveHourly(ctx context.Context) {
	ticker := time.NewTicker(snapshotEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_, err := save(ctx, p.store, p.instance, "", hourly)
		if err = errors.Join(err, dropOldSnapshots(p.instance, snapshotsKept)); err != nil {
			p.log.Error("the hourly snapshot", "err", err)
		}
		p.snapshotFault.Store(&err)
	}
}

// dropOldSnapshots removes all but the newest of the schedule's. Those that somebody
// asked for stay.
func dropOldSnapshots(i instance.Instance, keep int) error {
	paths, err := filepath.Glob(filepath.Join(snapshotDir(i), "*-"+hourly+snapshotSuffix))
	if err != nil {
		return err
	}
	slices.Sort(paths) // their names begin with the time
	var errs error
	for _, path := range paths[:max(0, len(paths)-keep)] {
		errs = errors.Join(errs, os.Remove(path))
	}
	return errs
}

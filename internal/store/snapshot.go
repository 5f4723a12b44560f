package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

const (
	// databaseFile is etcd's database below the data directory.
	databaseFile = "etcd/member/snap/db"
	// pageSize is the unit of the database; a snapshot is a number of pages and the
	// checksum behind them.
	pageSize = 512
)

// ErrChecksum says that a snapshot is not what was written, or not all of it.
var ErrChecksum = errors.New("its checksum does not fit: it is damaged or cut short")

// Save writes the whole state, as it is at one moment, to a new file with mode 0600:
// the database and its SHA-256, the form that etcdctl snapshot save has too. The file
// appears under its name only when it is complete and on disk. An existing file is
// never replaced.
func (s *Store) Save(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("snapshot %s is there already", path)
	}
	aside, err := os.CreateTemp(filepath.Dir(path), ".snapshot-*")
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer os.Remove(aside.Name()) // a no-op once linked and removed
	stream, err := s.client.Snapshot(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("snapshot: %w", err), aside.Close())
	}
	_, err = io.Copy(aside, stream)
	err = errors.Join(err, stream.Close(), aside.Sync(), aside.Close())
	if err == nil {
		err = Verify(aside.Name())
	}
	if err == nil {
		// A link, since a rename would replace what somebody made there meanwhile.
		err = os.Link(aside.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// Verify reads a snapshot and returns ErrChecksum when it is not whole.
func Verify(path string) error {
	_, err := readSnapshot(path, io.Discard)
	return err
}

// readSnapshot copies the database in a snapshot to w and returns its size.
func readSnapshot(path string, w io.Writer) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size() - sha256.Size
	if size <= 0 || size%pageSize != 0 {
		return 0, fmt.Errorf("%s: %w", path, ErrChecksum)
	}
	hash := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(w, hash), file, size); err != nil {
		return 0, err
	}
	want, err := io.ReadAll(file)
	if err != nil {
		return 0, err
	}
	if string(want) != string(hash.Sum(nil)) {
		return 0, fmt.Errorf("%s: %w", path, ErrChecksum)
	}
	return size, nil
}

// Restore makes the snapshot the state in dataDir, which no store may use. What was
// there is kept beside it, under the name that is returned ("" if there was nothing).
// A crash leaves the old state or the new one: the two change places in one step.
func Restore(snapshot, dataDir string, now time.Time) (kept string, err error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return "", err
	}
	aside, err := os.MkdirTemp(dataDir, ".restore-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(aside)
	if err := unpackSnapshot(snapshot, filepath.Join(aside, databaseFile)); err != nil {
		return "", err
	}
	current := filepath.Join(dataDir, "etcd")
	made := filepath.Join(aside, "etcd")
	if _, err := os.Lstat(current); errors.Is(err, os.ErrNotExist) {
		if err := os.Rename(made, current); err != nil {
			return "", err
		}
		return "", syncDir(dataDir)
	}
	if err := exchange(made, current); err != nil {
		return "", fmt.Errorf("exchange %s with the restored state: %w", current, err)
	}
	kept = current + ".before-" + now.UTC().Format("20060102T150405Z")
	return kept, errors.Join(os.Rename(made, kept), syncDir(dataDir))
}

// unpackSnapshot writes the database and makes it one of a cluster that has no
// members and no log yet: the start makes both.
func unpackSnapshot(snapshot, path string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = readSnapshot(snapshot, file)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	defer func() {
		// What cannot be read as a database is a panic of the library's.
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%s does not hold a database: %v", snapshot, strings.TrimSpace(fmt.Sprint(cause)))
		}
	}()
	quiet := zap.New(&slogCore{log: slog.New(slog.DiscardHandler)})
	database := backend.NewDefaultBackend(quiet, path)
	defer database.Close()
	members := schema.NewMembershipBackend(quiet, database)
	if err := errors.Join(members.TrimMembershipFromBackend(), members.TrimClusterFromBackend()); err != nil {
		return err
	}
	// The log of before is gone; without this, entries of the new one would count
	// as applied.
	tx := database.BatchTx()
	tx.LockOutsideApply()
	schema.UnsafeCreateMetaBucket(tx)
	tx.UnsafeDelete(schema.Meta, schema.MetaConsistentIndexKeyName)
	tx.UnsafeDelete(schema.Meta, schema.MetaTermKeyName)
	tx.Unlock()
	database.ForceCommit()
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

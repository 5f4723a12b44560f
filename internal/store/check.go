package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// lockPatience bounds the wait for the lock of a database whose process has just
// been killed.
const lockPatience = 5 * time.Second

// checkLog refuses a log that etcd would cut off at damage as if it were the torn end
// that a power cut leaves. Every entry in the database was synced in the log before,
// so a log that ends earlier has lost something. Nothing is changed.
func checkLog(dir string) error {
	database, err := contents(filepath.Join(dir, "member", "snap", "db"))
	if err != nil {
		return err
	}
	logged, err := lastLogged(filepath.Join(dir, "member", "wal"))
	if err != nil {
		return err
	}
	if logged < database.applied {
		return fmt.Errorf("its log is damaged or cut short: it ends at entry %d, and the database holds entry %d", logged, database.applied)
	}
	return nil
}

// content is what a database says of itself.
type content struct {
	// applied is the last entry of the log that is in it; 0 in a restored one.
	applied uint64
	// members says that it knows who its cluster is, which its first commit tells.
	members bool
}

// contents reads a database; one that is not there is empty.
func contents(path string) (c content, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the database is damaged: %v", cause)
		}
	}()
	database, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockPatience})
	if err != nil {
		return c, fmt.Errorf("the database is damaged: %w", err)
	}
	defer database.Close()
	err = database.View(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if value := meta.Get(schema.MetaConsistentIndexKeyName); len(value) == 8 {
				c.applied = binary.BigEndian.Uint64(value)
			}
			c.members = meta.Get(schema.MetaConfStateName) != nil
		}
		return nil
	})
	return c, err
}

// lastLogged reads the log up to its end, or up to where it is torn, and returns the
// index of the last entry. 0 means that there is none.
func lastLogged(dir string) (last uint64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return 0, err
	}
	slices.Sort(names)
	var readers []fileutil.FileReader
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		defer file.Close()
		readers = append(readers, fileutil.NewFileReader(file))
	}
	decoder := wal.NewDecoder(readers...)
	for {
		var record walpb.Record
		err := decoder.Decode(&record)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return last, nil
		}
		if err != nil {
			return 0, fmt.Errorf("its log is damaged: %w", err)
		}
		switch record.GetType() {
		case wal.CrcType:
			// Each file begins with the sum of those before it.
			if sum := decoder.LastCRC(); sum != 0 && record.Validate(sum) != nil {
				return 0, errors.New("its log is damaged: its files do not follow one another")
			}
			decoder.UpdateCRC(record.GetCrc())
		case wal.EntryType:
			var entry raftpb.Entry
			if err := proto.Unmarshal(record.GetData(), &entry); err != nil {
				return 0, fmt.Errorf("its log is damaged: %w", err)
			}
			last = entry.GetIndex()
		case wal.SnapshotType:
			var mark walpb.Snapshot
			if err := proto.Unmarshal(record.GetData(), &mark); err != nil {
				return 0, fmt.Errorf("its log is damaged: %w", err)
			}
			last = max(last, mark.GetIndex())
		}
	}
}

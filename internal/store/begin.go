package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// begunName is a file beside the database, from before it is made until its first
// commit is on disk. etcd may be unable to read what a power cut in between leaves, and
// nothing was answered yet.
const begunName = "etcd.begun"

// begin prepares for the start of the database in dataDir/etcd: of one whose first start
// was cut off nothing stays. first says that its first commit is still to come; commit
// it, and then call begun.
func begin(dataDir string) (first bool, err error) {
	dir, mark := filepath.Join(dataDir, "etcd"), filepath.Join(dataDir, begunName)
	if marked, err := exists(mark); err != nil {
		return false, err
	} else if marked {
		if database, err := contents(filepath.Join(dataDir, databaseFile)); err == nil && database.members {
			return true, nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return false, fmt.Errorf("remove what a first start left unfinished: %w", err)
		}
		return true, nil
	}
	if there, err := exists(dir); there || err != nil {
		return false, err
	}
	file, err := os.OpenFile(mark, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	return true, errors.Join(file.Close(), syncDir(dataDir))
}

// begun says that the first commit is on disk. The store may answer writes once this
// has returned nil: until then the next start would throw them away.
func begun(dataDir string) error {
	if err := os.Remove(filepath.Join(dataDir, begunName)); err != nil {
		return err
	}
	return syncDir(dataDir)
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// file is one file of a volume that mend writes.
type file struct {
	data []byte
	mode os.FileMode
}

const dataLink = "..data"

// isWritten says whether writeFiles ended for dir.
func isWritten(dir string) bool {
	_, err := os.Readlink(filepath.Join(dir, dataLink))
	return err == nil
}

// writeFiles writes the files of a volume so that they appear at once: into a
// directory of their own, which `..data` then names; the names that containers
// see are links through `..data`. Names may hold slashes.
func writeFiles(dir string, files map[string]file, group *int64) error {
	for name := range files {
		if err := checkName(name); err != nil {
			return err
		}
	}
	if err := makeOpenDir(dir); err != nil {
		return err
	}
	stamp, err := os.MkdirTemp(dir, "..content_")
	if err != nil {
		return err
	}
	if err := fill(stamp, files); err != nil {
		return errors.Join(err, os.RemoveAll(stamp))
	}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		err := os.Symlink(filepath.Join(dataLink, top), filepath.Join(dir, top))
		if err != nil && !os.IsExist(err) {
			return errors.Join(err, os.RemoveAll(stamp))
		}
	}
	if err := setGroup(dir, group, false); err != nil {
		return errors.Join(err, os.RemoveAll(stamp))
	}
	aside := filepath.Join(dir, "..data_tmp")
	if err := os.Remove(aside); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Symlink(filepath.Base(stamp), aside); err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(dir, dataLink))
}

func fill(stamp string, files map[string]file) error {
	if err := os.Chmod(stamp, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(stamp, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, f.mode); err != nil {
			return err
		}
		// The umask must not narrow it.
		if err := os.Chmod(path, f.mode); err != nil {
			return err
		}
	}
	return nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("invalid path: must not be empty: %q", name)
	case filepath.IsAbs(name):
		return fmt.Errorf("invalid path: must be relative path: %s", name)
	case len(name) > 4096:
		return errors.New("invalid path: must be less than or equal to 4096 characters")
	case strings.HasPrefix(name, ".."):
		return fmt.Errorf("invalid path: must not start with '..': %s", name)
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return fmt.Errorf("invalid path: must not contain '..': %s", name)
		}
		if len(part) > 255 {
			return errors.New("invalid path: filenames must be less than or equal to 255 characters")
		}
	}
	return nil
}

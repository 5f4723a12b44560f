package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var errMountFlags = errors.New("is on a file system mounted noexec")

// CheckExec reports a data directory from which programs cannot be run. dir may
// not exist yet; its nearest existing parent is what counts then.
func CheckExec(dir string) error {
	for probe := dir; ; probe = filepath.Dir(probe) {
		var stat unix.Statfs_t
		err := unix.Statfs(probe, &stat)
		if err == nil {
			if stat.Flags&unix.ST_NOEXEC != 0 {
				return fmt.Errorf("data directory %s %w: mend runs containerd from there; remount it with exec, or name another with --data-dir", dir, errMountFlags)
			}
			return nil
		}
		if probe == filepath.Dir(probe) || !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("data directory %s cannot be checked: %w", dir, err)
		}
	}
}

package cleanup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountsBelow lists the mount points strictly below dir, the deepest and latest first.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	sort.SliceStable(infos, func(i, j int) bool { return infos[i].ID > infos[j].ID })
	var points []string
	for _, m := range infos {
		if strings.HasPrefix(m.Mountpoint, dir+"/") {
			points = append(points, m.Mountpoint)
		}
	}
	sort.SliceStable(points, func(i, j int) bool { return strings.Count(points[i], "/") > strings.Count(points[j], "/") })
	return points, nil
}

// Unmount unmounts everything strictly below dir, and says what it could not. A mount
// that is busy is detached: it goes when its last user does. dir may not exist.
func Unmount(dir string) error {
	dir, err := realDir(dir)
	if err != nil || dir == "" {
		return err
	}
	// Shared propagation can uncover mounts that were hidden: look again.
	for range 10 {
		points, err := mountsBelow(dir)
		if err != nil || len(points) == 0 {
			return err
		}
		var failed error
		for _, p := range points {
			err := detach(p)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				failed = errors.Join(failed, fmt.Errorf("unmount %s: %w", p, err))
			}
		}
		if failed != nil {
			return failed
		}
	}
	return fmt.Errorf("mounts below %s come back", dir)
}

// realDir resolves the links above a folder, since the kernel's table of mounts has
// real paths; it returns "" for one that does not exist. The folder itself must not be
// a link.
func realDir(dir string) (string, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is no folder", dir)
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(dir)), nil
}

// RemoveTree deletes a folder and all in it. It refuses when something is mounted below
// it or on it, so that it never deletes what only appears there, and it deletes links
// instead of following them. dir may not exist.
func RemoveTree(dir string) error {
	dir, err := realDir(dir)
	if err != nil || dir == "" {
		return err
	}
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("%s is not deleted: something is mounted at %s", dir, strings.Join(points, ", "))
	}
	if mounted, err := mountinfo.Mounted(dir); err != nil {
		return fmt.Errorf("look for a mount at %s: %w", dir, err)
	} else if mounted {
		return emptyMountPoint(dir)
	}
	// The standard library walks by descriptors and does not follow links.
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("delete %s: %w", dir, err)
	}
	return nil
}

// emptyMountPoint deletes what is in a folder that is a file system of its own, as a
// data directory on its own disk: the content is ours, the mount is not.
func emptyMountPoint(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var failed error
	for _, e := range entries {
		if e.Name() == "lost+found" {
			continue
		}
		failed = errors.Join(failed, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return failed
}

// RemoveEmpty removes a folder of the given name if nothing is in it: the one that all
// instances share goes with the last of them.
func RemoveEmpty(dir, name string) error {
	if filepath.Base(dir) != name {
		return nil
	}
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return fmt.Errorf("remove %s: %w", dir, err)
}

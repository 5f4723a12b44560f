package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Kernel is the Mounter of a node that runs real containers.
type Kernel struct{}

// Tmpfs mounts a memory file system of at most size bytes (0: the kernel's
// default, half of memory).
func (Kernel) Tmpfs(dir string, size int64) error {
	options := "mode=0777"
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return os.Chmod(dir, 0o777)
}

// IsMounted says whether dir itself is a mount point.
func (Kernel) IsMounted(dir string) (bool, error) { return mountinfo.Mounted(dir) }

// SubPath binds the file behind sub to target.
func (k Kernel) SubPath(volume, sub, target string) (string, error) {
	fd, err := openBeneath(volume, sub)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := k.UnmountBelow(target); err != nil {
		return "", err
	}
	if err := makeTarget(fd, target); err != nil {
		return "", err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("bind sub-path on %s: %w", target, err)
	}
	return target, nil
}

// makeTarget makes target a mount point of the same type as fd.
func makeTarget(fd int, target string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(target, 0o750)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// openBeneath opens sub inside volume; the kernel refuses every step that would
// lead outside.
func openBeneath(volume, sub string) (int, error) {
	root, err := unix.Open(volume, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, sub, how)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := makeBeneath(root, sub); err != nil {
		return -1, err
	}
	return unix.Openat2(root, sub, how)
}

// makeBeneath makes the missing directories of sub, each with the mode of the
// volume's root, so that an fsGroup can write to it.
func makeBeneath(root int, sub string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(root, &stat); err != nil {
		return err
	}
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	parts := strings.Split(filepath.Clean(sub), "/")
	for i := range parts {
		parent, err := unix.Openat2(root, filepath.Join(append([]string{"."}, parts[:i]...)...), how)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(parent, parts[i], stat.Mode&0o7777)
		if err == nil {
			err = unix.Fchmodat(parent, parts[i], stat.Mode&0o7777, 0)
		}
		unix.Close(parent)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// MountsBelow lists mount points at or below dir, deepest first.
func (Kernel) MountsBelow(dir string) ([]string, error) {
	// The kernel's table has real paths. A mount that is missed behind a link would be
	// emptied with the folder, and a sub-path of a hostPath with it.
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(parent, filepath.Base(dir))
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	points := make([]string, 0, len(infos))
	for _, info := range infos {
		points = append(points, info.Mountpoint)
	}
	slices.SortFunc(points, func(a, b string) int { return len(b) - len(a) })
	return points, nil
}

// UnmountBelow unmounts everything at or below dir. A busy mount is detached and
// ends with its last user.
func (k Kernel) UnmountBelow(dir string) error {
	points, err := k.MountsBelow(dir)
	if err != nil {
		return err
	}
	var problems []error
	for _, p := range points {
		err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(p, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			problems = append(problems, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(problems...)
}

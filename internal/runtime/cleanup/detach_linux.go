package cleanup

import "golang.org/x/sys/unix"

// detach unmounts point, which goes when its last user does.
func detach(point string) error {
	return unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
}

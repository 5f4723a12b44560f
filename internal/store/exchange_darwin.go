package store

import "golang.org/x/sys/unix"

// exchange has two paths change places in one step. The file system must be APFS.
func exchange(one, other string) error {
	return unix.RenamexNp(one, other, unix.RENAME_SWAP)
}

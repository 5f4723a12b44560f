package store

import "golang.org/x/sys/unix"

// exchange has two paths change places in one step.
func exchange(one, other string) error {
	return unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
}

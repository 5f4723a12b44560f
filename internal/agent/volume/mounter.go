package volume

import (
	"os"
	"path/filepath"
)

// Mounter is what volumes need of the kernel. All calls return at once.
type Mounter interface {
	Tmpfs(dir string, size int64) error
	IsMounted(dir string) (bool, error)
	// SubPath resolves sub inside volume without leaving it, makes it a directory
	// where it is missing, and returns a path that goes on meaning this very file
	// even if a container swaps a symbolic link in between; target is where it
	// may mount that.
	SubPath(volume, sub, target string) (string, error)
	MountsBelow(dir string) ([]string, error)
	UnmountBelow(dir string) error
}

// None is the Mounter of a simulated node: no privileges, plain directories.
type None struct{}

// Tmpfs leaves dir as it is.
func (None) Tmpfs(string, int64) error { return nil }

// IsMounted is always true: there is nothing to mount.
func (None) IsMounted(string) (bool, error) { return true, nil }

// SubPath makes the directory and names it.
func (None) SubPath(volume, sub, _ string) (string, error) {
	path := filepath.Join(volume, sub)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, os.MkdirAll(path, 0o755)
}

// MountsBelow is always empty.
func (None) MountsBelow(string) ([]string, error) { return nil, nil }

// UnmountBelow has nothing to do.
func (None) UnmountBelow(string) error { return nil }

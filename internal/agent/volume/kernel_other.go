//go:build !linux

package volume

import (
	"errors"
	"fmt"
)

// Kernel is the Mounter of a node that runs real containers, which needs Linux. Here
// it mounts nothing and says so.
type Kernel struct{ None }

// Tmpfs fails.
func (Kernel) Tmpfs(dir string, _ int64) error {
	return fmt.Errorf("mount tmpfs on %s: %w", dir, errors.ErrUnsupported)
}

// SubPath fails.
func (Kernel) SubPath(_, _, target string) (string, error) {
	return "", fmt.Errorf("bind sub-path on %s: %w", target, errors.ErrUnsupported)
}

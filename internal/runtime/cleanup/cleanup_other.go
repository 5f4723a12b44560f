//go:build !linux

package cleanup

import (
	"context"
	"errors"
	"fmt"
)

// What containers leave is on Linux only.

// detach leaves a mount alone: mend mounts nothing here, so it is somebody else's.
func detach(point string) error {
	return fmt.Errorf("%s is not mend's: %w", point, errors.ErrUnsupported)
}

// KillCgroup fails: there are no cgroups.
func KillCgroup(_ context.Context, group string) error {
	return fmt.Errorf("cgroup %s: %w", group, errors.ErrUnsupported)
}

package volume

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
)

// ErrNoAnswer is the error for a path of the host that keeps waiting who asks for it.
var ErrNoAnswer = errors.New("did not answer")

// HostPaths is what volumes need of paths that are the host's. A call may wait for the
// host's file system, at most some seconds; ctx ends only the wait.
type HostPaths interface {
	// Check is [CheckHostPath].
	Check(ctx context.Context, source *v1.HostPathVolumeSource) error
	// Answers returns [ErrNoAnswer], with the path, for one that does not answer now.
	Answers(ctx context.Context, path string) error
	// SubPath is that of [Mounter] for a hostPath.
	SubPath(ctx context.Context, path, sub, target string) (string, error)
}

// direct asks in this process, which a file system that hangs would hold for ever. It
// is for containers that are not real.
type direct struct{ Mounter }

func (direct) Check(_ context.Context, source *v1.HostPathVolumeSource) error {
	return CheckHostPath(source)
}

func (direct) Answers(context.Context, string) error { return nil }

func (d direct) SubPath(_ context.Context, path, sub, target string) (string, error) {
	return d.Mounter.SubPath(path, sub, target)
}

func (m *Manager) hostPaths() HostPaths {
	if m.HostPaths == nil {
		return direct{m.Mounter}
	}
	return m.HostPaths
}

// CheckHostPath creates what may be created and refuses what is of another type
// than declared. Of a path without a type it only asks.
func CheckHostPath(source *v1.HostPathVolumeSource) error {
	path := source.Path
	info, err := os.Stat(path)
	if source.Type == nil || *source.Type == v1.HostPathUnset {
		return nil
	}
	switch *source.Type {
	case v1.HostPathDirectoryOrCreate:
		if os.IsNotExist(err) {
			return os.MkdirAll(path, 0o755)
		}
		return isType(path, info, err, "directory")
	case v1.HostPathDirectory:
		return isType(path, info, err, "directory")
	case v1.HostPathFileOrCreate:
		if os.IsNotExist(err) {
			f, err := os.OpenFile(path, os.O_CREATE, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		return isType(path, info, err, "file")
	case v1.HostPathFile:
		return isType(path, info, err, "file")
	case v1.HostPathSocket:
		return isType(path, info, err, "socket file")
	case v1.HostPathCharDev:
		return isType(path, info, err, "character device")
	case v1.HostPathBlockDev:
		return isType(path, info, err, "block device")
	case v1.HostPathUnset:
	}
	return fmt.Errorf("%s is an invalid volume type", *source.Type)
}

func isType(path string, info os.FileInfo, err error, want string) error {
	if err != nil {
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: %w", path, want, err)
	}
	names := map[string]v1.HostPathType{
		"directory": v1.HostPathDirectory, "file": v1.HostPathFile, "socket file": v1.HostPathSocket,
		"character device": v1.HostPathCharDev, "block device": v1.HostPathBlockDev,
	}
	if have := typeOf(info.Mode()); have != names[want] {
		return fmt.Errorf("hostPath type check failed: %s is not a %s, it's a %s", path, want, have)
	}
	return nil
}

func typeOf(mode os.FileMode) v1.HostPathType {
	switch {
	case mode.IsDir():
		return v1.HostPathDirectory
	case mode&os.ModeSocket != 0:
		return v1.HostPathSocket
	case mode&os.ModeCharDevice != 0:
		return v1.HostPathCharDev
	case mode&os.ModeDevice != 0:
		return v1.HostPathBlockDev
	}
	return v1.HostPathFile
}

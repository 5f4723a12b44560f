package volume

import (
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
)

// checkHostPath creates what may be created and refuses what is of another type
// than declared.
func checkHostPath(source *v1.HostPathVolumeSource) error {
	if source.Type == nil || *source.Type == v1.HostPathUnset {
		return nil
	}
	path := source.Path
	info, err := os.Stat(path)
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

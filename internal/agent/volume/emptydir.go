package volume

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

func (m *Manager) setUpEmptyDir(pod *v1.Pod, v *v1.Volume) error {
	dir, _ := m.dir(pod.UID, v)
	_, err := os.Stat(dir)
	fresh := os.IsNotExist(err)
	if err := makeOpenDir(dir); err != nil {
		return err
	}
	switch v.EmptyDir.Medium {
	case v1.StorageMediumDefault:
		if !fresh {
			return nil
		}
	case v1.StorageMediumMemory:
		mounted, err := m.Mounter.IsMounted(dir)
		if err != nil {
			return err
		}
		if mounted {
			return nil
		}
		if err := m.Mounter.Tmpfs(dir, tmpfsSize(pod, v, m.Host.Allocatable)); err != nil {
			return err
		}
	default:
		return fmt.Errorf("storage medium %q is not supported", v.EmptyDir.Medium)
	}
	return setGroup(dir, fsGroup(pod), true)
}

// makeOpenDir makes a directory that every user of the Pod may write to.
func makeOpenDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		if os.IsExist(err) {
			return nil // and it keeps the mode that it was given since
		}
		return err
	}
	// The umask must not narrow it.
	return os.Chmod(dir, 0o777)
}

// tmpfsSize in bytes: the least of what the volume asks for, what the Pod may
// use and what the node has; 0 is no limit.
func tmpfsSize(pod *v1.Pod, v *v1.Volume, allocatable v1.ResourceList) int64 {
	size := allocatable.Memory().Value()
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	bounds := []int64{0, limits.Memory().Value()}
	if v.EmptyDir.SizeLimit != nil {
		bounds[0] = v.EmptyDir.SizeLimit.Value()
	}
	for _, bound := range bounds {
		if bound > 0 && (size == 0 || bound < size) {
			size = bound
		}
	}
	return size
}

// setGroup gives everything below dir to the Pod's fsGroup, readable by it and,
// where writable is true, writable; new files inherit the group.
func setGroup(dir string, group *int64, writable bool) error {
	if group == nil {
		return nil
	}
	return filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, int(*group)); err != nil {
			return err
		}
		if info.Mode()&os.ModeSymlink != 0 {
			return nil
		}
		mode := info.Mode() | 0o440
		if writable {
			mode |= 0o660
		}
		if info.IsDir() {
			mode |= os.ModeSetgid | 0o110
		}
		return os.Chmod(path, mode)
	})
}

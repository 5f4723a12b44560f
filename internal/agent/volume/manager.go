package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/agent/podspec"
)

// Tokens makes ServiceAccount tokens bound to a Pod.
type Tokens interface {
	Token(ctx context.Context, pod *v1.Pod, audience string, seconds *int64) (string, error)
}

// Manager works on the volumes of all Pods. Calls for different Pods may overlap;
// calls for one Pod must not.
type Manager struct {
	Host    podspec.Host
	Sources podspec.Sources
	Tokens  Tokens
	Mounter Mounter
	// HostPaths looks at the host's paths; nil does it in this process.
	HostPaths HostPaths
	// Lazy makes no directory or file before somebody writes to it, for containers
	// that are not real: a thousand Pods would make ten thousand.
	Lazy bool
}

// Failure is one volume that could not be set up. Its text is the message of the
// FailedMount event.
type Failure struct {
	Volume string
	Err    error
}

func (f Failure) Error() string {
	if errors.Is(f.Err, errUnsupported) {
		return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[], failed to process volumes=[%s]: %v",
			f.Volume, f.Volume, f.Err)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", f.Volume, f.Err)
}

var errUnsupported = errors.New("this kind of volume is not supported")

// SetUp puts every volume of the Pod in place. What is in place already stays as
// it is. It blocks on the API server for ConfigMaps, Secrets and tokens, and on the
// host's file systems.
func (m *Manager) SetUp(ctx context.Context, pod *v1.Pod) []Failure {
	if m.Lazy && len(pod.Spec.Volumes) == 0 {
		return nil
	}
	if err := os.MkdirAll(m.Host.PodDir(pod.UID), 0o750); err != nil {
		return []Failure{{Volume: "pod directory", Err: err}}
	}
	var failures []Failure
	for i := range pod.Spec.Volumes {
		if err := m.setUp(ctx, pod, &pod.Spec.Volumes[i]); err != nil {
			failures = append(failures, Failure{Volume: pod.Spec.Volumes[i].Name, Err: err})
		}
	}
	return failures
}

func (m *Manager) setUp(ctx context.Context, pod *v1.Pod, v *v1.Volume) error {
	switch {
	case v.HostPath != nil:
		return m.hostPaths().Check(ctx, v.HostPath)
	case v.EmptyDir != nil:
		return m.setUpEmptyDir(pod, v)
	}
	dir, ok := m.dir(pod.UID, v)
	if !ok {
		return errUnsupported
	}
	if isWritten(dir) {
		return nil
	}
	files, err := m.payload(ctx, pod, v)
	if err != nil {
		return err
	}
	return writeFiles(dir, files, fsGroup(pod))
}

// kinds maps a volume's kind to the directory name the kubelet gives it.
func kind(v *v1.Volume) (string, bool) {
	switch {
	case v.EmptyDir != nil:
		return "kubernetes.io~empty-dir", true
	case v.ConfigMap != nil:
		return "kubernetes.io~configmap", true
	case v.Secret != nil:
		return "kubernetes.io~secret", true
	case v.DownwardAPI != nil:
		return "kubernetes.io~downward-api", true
	case v.Projected != nil:
		return "kubernetes.io~projected", true
	}
	return "", false
}

func (m *Manager) dir(uid types.UID, v *v1.Volume) (string, bool) {
	name, ok := kind(v)
	return filepath.Join(m.Host.PodDir(uid), "volumes", name, v.Name), ok
}

// path is where on the node the volume's content is.
func (m *Manager) path(uid types.UID, v *v1.Volume) (string, bool) {
	if v.HostPath != nil {
		return v.HostPath.Path, true
	}
	return m.dir(uid, v)
}

// TearDown takes away everything of a Pod: mounts first, deepest first, then
// files. It is safe to repeat, and for a Pod that never had anything.
func (m *Manager) TearDown(uid types.UID) error {
	if uid == "" || strings.ContainsAny(string(uid), "/.") {
		return fmt.Errorf("refusing to remove files of a Pod with UID %q", uid)
	}
	dir := m.Host.PodDir(uid)
	if err := m.Mounter.UnmountBelow(dir); err != nil {
		return err
	}
	// A mount that is still there must not be emptied through its mount point.
	left, err := m.Mounter.MountsBelow(dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("still mounted: %s", strings.Join(left, ", "))
	}
	return os.RemoveAll(dir)
}

// Residents are the Pods that have a directory here.
func (m *Manager) Residents() ([]types.UID, error) {
	entries, err := os.ReadDir(m.Host.PodsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

func fsGroup(pod *v1.Pod) *int64 {
	if sc := pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

package volume

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/agent/podspec"
)

const (
	etcHosts     = "/etc/hosts"
	etcHostsFile = "etc-hosts"
)

// Mounts prepares what the container mounts: its volumes, /etc/hosts and a fresh
// file for its termination message. The error is the text that a
// CreateContainerConfigError shows. It writes files and, for sub-paths, mounts. It
// asks each hostPath for an answer, since the runtime will ask without a limit.
func (m *Manager) Mounts(ctx context.Context, pod *v1.Pod, c *v1.Container, podIPs []string, env []podspec.EnvVar) ([]*runtimeapi.Mount, error) {
	var mounts []*runtimeapi.Mount
	ownHosts := len(podIPs) > 0 || pod.Spec.HostNetwork
	for i := range c.VolumeMounts {
		mount, err := m.mount(ctx, pod, c, i, env)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, mount)
		ownHosts = ownHosts && c.VolumeMounts[i].MountPath != etcHosts
	}
	if ownHosts {
		path, err := m.writeHosts(pod, podIPs)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: etcHosts, HostPath: path})
	}
	if c.TerminationMessagePath != "" {
		path, err := m.makeMessageFile(pod, c)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: absolute(c.TerminationMessagePath), HostPath: path})
	}
	return mounts, nil
}

func (m *Manager) mount(ctx context.Context, pod *v1.Pod, c *v1.Container, index int, env []podspec.EnvVar) (*runtimeapi.Mount, error) {
	vm := &c.VolumeMounts[index]
	at := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == vm.Name })
	if at < 0 {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
	}
	v := &pod.Spec.Volumes[at]
	path, ok := m.path(pod.UID, v)
	if !ok {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
	}
	sub, err := subPath(vm, env)
	if err != nil {
		return nil, err
	}
	if v.HostPath != nil {
		if err := m.hostPaths().Answers(ctx, path); err != nil {
			return nil, err
		}
	}
	if sub != "" {
		target := filepath.Join(m.Host.PodDir(pod.UID), "volume-subpaths", v.Name, c.Name, fmt.Sprint(index))
		if path, err = m.subPath(ctx, v, path, sub, target); errors.Is(err, ErrNoAnswer) {
			return nil, err
		} else if err != nil {
			// The details would tell the user about the host's files.
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", vm.Name, c.Name)
		}
	}
	propagation, err := propagationOf(vm.MountPropagation)
	if err != nil {
		return nil, err
	}
	written := v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	return &runtimeapi.Mount{
		ContainerPath:     absolute(vm.MountPath),
		HostPath:          path,
		Readonly:          vm.ReadOnly || written,
		RecursiveReadOnly: vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled,
		Propagation:       propagation,
	}, nil
}

func (m *Manager) subPath(ctx context.Context, v *v1.Volume, path, sub, target string) (string, error) {
	if v.HostPath != nil {
		return m.hostPaths().SubPath(ctx, path, sub, target)
	}
	return m.Mounter.SubPath(path, sub, target)
}

func subPath(vm *v1.VolumeMount, env []podspec.EnvVar) (string, error) {
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		missing := map[string]bool{}
		sub = podspec.Expand(vm.SubPathExpr, func(name string) (string, bool) {
			for _, e := range env {
				if e.Name == name && e.Value != "" {
					return e.Value, true
				}
			}
			missing[name] = true
			return "", true
		})
		if len(missing) > 0 {
			names := make([]string, 0, len(missing))
			for name := range missing {
				names = append(names, name)
			}
			slices.Sort(names)
			return "", fmt.Errorf("missing value for %s", strings.Join(names, ", "))
		}
	}
	if filepath.IsAbs(sub) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	if slices.Contains(strings.Split(sub, "/"), "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
	}
	return sub, nil
}

func propagationOf(mode *v1.MountPropagationMode) (runtimeapi.MountPropagation, error) {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *mode {
	case v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("invalid MountPropagation mode: %q", *mode)
}

func absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return "/" + path
}

func (m *Manager) writeHosts(pod *v1.Pod, podIPs []string) (string, error) {
	var node []byte
	if pod.Spec.HostNetwork {
		var err error
		if node, err = os.ReadFile(etcHosts); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	content, err := m.Host.HostsFile(pod, podIPs, node)
	if err != nil {
		return "", err
	}
	dir := m.Host.PodDir(pod.UID)
	if m.Lazy {
		return filepath.Join(dir, etcHostsFile), nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	// Written in place, not renamed: running containers hold this very file.
	path := filepath.Join(dir, etcHostsFile)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o644)
}

// makeMessageFile makes a file of its own for each instance of a container.
func (m *Manager) makeMessageFile(pod *v1.Pod, c *v1.Container) (string, error) {
	dir := m.Host.ContainerDir(pod.UID, c.Name)
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", err
	}
	path := filepath.Join(dir, hex.EncodeToString(id[:]))
	if m.Lazy {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o666)
}

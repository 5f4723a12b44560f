package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"mend/internal/agent/podspec"
)

var errNoDefaultMode = errors.New("no defaultMode used, not even the default value for it")

// payload is what the volume contains now.
func (m *Manager) payload(ctx context.Context, pod *v1.Pod, v *v1.Volume) (map[string]file, error) {
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return m.configMapFiles(ctx, pod.Namespace, s.Name, s.Items, s.DefaultMode, s.Optional)
	case v.Secret != nil:
		s := v.Secret
		return m.secretFiles(ctx, pod.Namespace, s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case v.DownwardAPI != nil:
		return m.downwardFiles(pod, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	case v.Projected != nil:
		return m.projectedFiles(ctx, pod, v.Projected)
	}
	return nil, errUnsupported
}

func (m *Manager) configMapFiles(ctx context.Context, namespace, name string, items []v1.KeyToPath, mode *int32, optional *bool) (map[string]file, error) {
	cm, err := m.Sources.ConfigMap(ctx, namespace, name)
	if err != nil {
		if !apierrors.IsNotFound(err) || !isTrue(optional) {
			return nil, err
		}
		cm = &v1.ConfigMap{}
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, s := range cm.Data {
		data[k] = []byte(s)
	}
	for k, b := range cm.BinaryData {
		data[k] = b
	}
	return project(data, items, mode, isTrue(optional), "configmap references non-existent config key: %s")
}

func (m *Manager) secretFiles(ctx context.Context, namespace, name string, items []v1.KeyToPath, mode *int32, optional *bool) (map[string]file, error) {
	secret, err := m.Sources.Secret(ctx, namespace, name)
	if err != nil {
		if !apierrors.IsNotFound(err) || !isTrue(optional) {
			return nil, err
		}
		secret = &v1.Secret{}
	}
	return project(secret.Data, items, mode, isTrue(optional), "references non-existent secret key: %s")
}

// project chooses the keys that items name, or all.
func project(data map[string][]byte, items []v1.KeyToPath, mode *int32, optional bool, missing string) (map[string]file, error) {
	if mode == nil {
		return nil, errNoDefaultMode
	}
	files := make(map[string]file, len(data))
	if len(items) == 0 {
		for k, b := range data {
			files[k] = file{b, os.FileMode(*mode)}
		}
		return files, nil
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf(missing, item.Key)
		}
		files[item.Path] = file{content, fileMode(item.Mode, mode)}
	}
	return files, nil
}

func (m *Manager) downwardFiles(pod *v1.Pod, items []v1.DownwardAPIVolumeFile, mode *int32) (map[string]file, error) {
	if mode == nil {
		return nil, errNoDefaultMode
	}
	files := make(map[string]file, len(items))
	var problems []error
	for _, item := range items {
		var content string
		var err error
		switch {
		case item.FieldRef != nil:
			content, err = podspec.MetadataField(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			content, err = m.Host.ResourceField(item.ResourceFieldRef, pod, nil)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		files[filepath.Clean(item.Path)] = file{[]byte(content), fileMode(item.Mode, mode)}
	}
	return files, utilerrors.NewAggregate(problems)
}

func (m *Manager) projectedFiles(ctx context.Context, pod *v1.Pod, source *v1.ProjectedVolumeSource) (map[string]file, error) {
	if source.DefaultMode == nil {
		return nil, errNoDefaultMode
	}
	all := map[string]file{}
	var problems []error
	for i := range source.Sources {
		files, err := m.projection(ctx, pod, &source.Sources[i], source.DefaultMode)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		for name, f := range files {
			all[name] = f
		}
	}
	return all, utilerrors.NewAggregate(problems)
}

func (m *Manager) projection(ctx context.Context, pod *v1.Pod, s *v1.VolumeProjection, mode *int32) (map[string]file, error) {
	switch {
	case s.ConfigMap != nil:
		return m.configMapFiles(ctx, pod.Namespace, s.ConfigMap.Name, s.ConfigMap.Items, mode, s.ConfigMap.Optional)
	case s.Secret != nil:
		return m.secretFiles(ctx, pod.Namespace, s.Secret.Name, s.Secret.Items, mode, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return m.downwardFiles(pod, s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		t := s.ServiceAccountToken
		token, err := m.Tokens.Token(ctx, pod, t.Audience, t.ExpirationSeconds)
		if err != nil {
			return nil, err
		}
		f := file{[]byte(token), os.FileMode(*mode)}
		if fsGroup(pod) != nil {
			f.mode = 0o600 // setGroup opens it to the group
		}
		return map[string]file{t.Path: f}, nil
	}
	return nil, errUnsupported
}

func fileMode(own, standard *int32) os.FileMode {
	if own != nil {
		return os.FileMode(*own)
	}
	return os.FileMode(*standard)
}

func isTrue(b *bool) bool { return b != nil && *b }

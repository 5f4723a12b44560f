package podspec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// EnvVar is one variable of a container's environment.
type EnvVar struct{ Name, Value string }

// Env is the environment of a container: what it declares in its order, then
// what it takes from whole ConfigMaps and Secrets, then the variables of
// Services, each by name. A declared variable wins over a taken one, and both
// over a Service's.
//
// The error is the text that a CreateContainerConfigError shows.
func (h Host) Env(ctx context.Context, pod *v1.Pod, c *v1.Container, podIPs []string, src Sources) ([]EnvVar, error) {
	if pod.Spec.EnableServiceLinks == nil {
		return nil, errors.New("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")
	}
	services, err := src.Services()
	if err != nil {
		return nil, fmt.Errorf("failed to list services when setting up env vars: %w", err)
	}
	r := envResolver{host: h, ctx: ctx, pod: pod, container: c, podIPs: podIPs, src: src,
		values: map[string]string{}, services: serviceVars(services, pod.Namespace, *pod.Spec.EnableServiceLinks)}
	if err := r.takeAll(); err != nil {
		return nil, err
	}
	var env []EnvVar
	declared := map[string]int{}
	for i := range c.Env {
		name := c.Env[i].Name
		value, ok, err := r.value(&c.Env[i])
		if err != nil {
			return nil, err
		}
		if !ok {
			continue // optional and absent
		}
		r.values[name] = value
		if at, twice := declared[name]; twice {
			env[at].Value = value // the last declaration counts
			continue
		}
		declared[name] = len(env)
		env = append(env, EnvVar{name, value})
	}
	for _, name := range slices.Sorted(maps.Keys(r.values)) {
		if _, done := declared[name]; !done {
			env = append(env, EnvVar{name, r.values[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.services)) {
		if _, done := r.values[name]; !done {
			env = append(env, EnvVar{name, r.services[name]})
		}
	}
	return env, nil
}

type envResolver struct {
	host      Host
	ctx       context.Context
	pod       *v1.Pod
	container *v1.Container
	podIPs    []string
	src       Sources
	values    map[string]string // resolved so far
	services  map[string]string
}

func (r *envResolver) lookup(name string) (string, bool) {
	if v, ok := r.values[name]; ok {
		return v, true
	}
	v, ok := r.services[name]
	return v, ok
}

// takeAll applies envFrom.
func (r *envResolver) takeAll() error {
	for _, from := range r.container.EnvFrom {
		switch {
		case from.ConfigMapRef != nil:
			cm, err := r.src.ConfigMap(r.ctx, r.pod.Namespace, from.ConfigMapRef.Name)
			if absent(err, from.ConfigMapRef.Optional) {
				continue
			}
			if err != nil {
				return err
			}
			for k, v := range cm.Data {
				r.values[from.Prefix+k] = v
			}
		case from.SecretRef != nil:
			secret, err := r.src.Secret(r.ctx, r.pod.Namespace, from.SecretRef.Name)
			if absent(err, from.SecretRef.Optional) {
				continue
			}
			if err != nil {
				return err
			}
			for k, v := range secret.Data {
				r.values[from.Prefix+k] = string(v)
			}
		}
	}
	return nil
}

// value resolves one declared variable. ok is false where it is optional and its
// source absent.
func (r *envResolver) value(e *v1.EnvVar) (value string, ok bool, err error) {
	if e.Value != "" || e.ValueFrom == nil {
		return Expand(e.Value, r.lookup), true, nil
	}
	from := e.ValueFrom
	switch {
	case from.FieldRef != nil:
		value, err = r.host.field(from.FieldRef, r.pod, r.podIPs)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = r.host.ResourceField(from.ResourceFieldRef, r.pod, r.container)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		return r.configMapKey(from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		return r.secretKey(from.SecretKeyRef)
	case from.FileKeyRef != nil:
		return "", false, fmt.Errorf("environment variable %s: fileKeyRef is not supported", e.Name)
	}
	return "", true, nil
}

func (r *envResolver) configMapKey(ref *v1.ConfigMapKeySelector) (string, bool, error) {
	cm, err := r.src.ConfigMap(r.ctx, r.pod.Namespace, ref.Name)
	if absent(err, ref.Optional) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	if value, ok := cm.Data[ref.Key]; ok {
		return value, true, nil
	}
	if isTrue(ref.Optional) {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, r.pod.Namespace, ref.Name)
}

func (r *envResolver) secretKey(ref *v1.SecretKeySelector) (string, bool, error) {
	secret, err := r.src.Secret(r.ctx, r.pod.Namespace, ref.Name)
	if absent(err, ref.Optional) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	if value, ok := secret.Data[ref.Key]; ok {
		return string(value), true, nil
	}
	if isTrue(ref.Optional) {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, r.pod.Namespace, ref.Name)
}

func absent(err error, optional *bool) bool { return apierrors.IsNotFound(err) && isTrue(optional) }

func isTrue(b *bool) bool { return b != nil && *b }

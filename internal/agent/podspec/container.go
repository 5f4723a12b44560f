package podspec

import (
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerInput is all that a container's configuration is made of. Attempt is
// its restart count; TargetID the container whose processes an ephemeral
// container joins, "" for none.
type ContainerInput struct {
	Pod       *v1.Pod
	Container *v1.Container
	Attempt   uint32
	Image     Image
	Env       []EnvVar
	Mounts    []*runtimeapi.Mount
	TargetID  string
}

// Container renders the configuration of one instance of a container. The error
// is the text that a CreateContainerConfigError shows.
func (h Host) Container(in ContainerInput) (*runtimeapi.ContainerConfig, error) {
	pod, c := in.Pod, in.Container
	security, err := h.containerSecurity(pod, c, in.Image, in.TargetID)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: in.Image.Ref, UserSpecifiedImage: c.Image},
		Command:     expandAll(c.Command, in.Env),
		Args:        expandAll(c.Args, in.Env),
		WorkingDir:  c.WorkingDir,
		Labels:      containerLabels(pod, c),
		Annotations: containerAnnotations(pod, c, in.Attempt),
		Mounts:      in.Mounts,
		LogPath:     logPath(c.Name, in.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       h.containerResources(pod, c),
			SecurityContext: security,
		},
	}
	for _, e := range in.Env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	return config, nil
}

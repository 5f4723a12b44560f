package podspec

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// Sandbox renders the configuration of the Pod's attempt-th sandbox, with the
// events it asks for.
func (h Host) Sandbox(pod *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	dns, warnings, err := h.dns(pod)
	if err != nil {
		return nil, nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt,
		},
		Labels:       sandboxLabels(pod),
		Annotations:  maps.Clone(pod.Annotations),
		DnsConfig:    dns,
		LogDirectory: h.PodLogDir(pod.Namespace, pod.Name, pod.UID),
		PortMappings: portMappings(pod),
	}
	if !pod.Spec.HostNetwork {
		if config.Hostname, err = h.kernelHostname(pod); err != nil {
			return nil, nil, err
		}
	}
	if config.Linux, err = h.linuxSandbox(pod); err != nil {
		return nil, nil, err
	}
	return config, warnings, nil
}

func (h Host) linuxSandbox(pod *v1.Pod) (*runtimeapi.LinuxPodSandboxConfig, error) {
	// A Pod that asks for users of its own must not run as the host's root.
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	}
	security := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged: hasPrivileged(pod),
		// The pause process needs no more than the default profile allows,
		// whatever the containers ask for.
		Seccomp:            &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		NamespaceOptions:   namespaces(pod),
		SupplementalGroups: supplementalGroups(pod),
	}
	sysctls := map[string]string{}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			sysctls[Dotted(s.Name)] = s.Value
		}
		security.RunAsUser, security.RunAsGroup = int64Value(sc.RunAsUser), int64Value(sc.RunAsGroup)
		security.SelinuxOptions = selinux(sc.SELinuxOptions)
	}
	var err error
	if security.SupplementalGroupsPolicy, err = groupsPolicy(pod); err != nil {
		return nil, err
	}
	return &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    h.PodCgroup(pod),
		SecurityContext: security,
		Sysctls:         sysctls,
		Resources:       sandboxResources(pod),
		Overhead:        overhead(pod),
	}, nil
}

// Dotted converts a sysctl written with slashes ("net/ipv4/conf/eth0.100/…") to
// the dotted form that the OCI runtime takes; dots inside become slashes.
func Dotted(name string) string {
	first := strings.IndexAny(name, "./")
	if first < 0 || name[first] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

func hasPrivileged(pod *v1.Pod) bool {
	for c := range podutil.ContainerIter(&pod.Spec, podutil.AllContainers) {
		if c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged) {
			return true
		}
	}
	return false
}

// portMappings lists every declared port of the containers; only those with a
// host port make the runtime act.
func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	var all []*runtimeapi.PortMapping
	for i := range pod.Spec.Containers {
		seen := map[string]bool{}
		for _, p := range pod.Spec.Containers[i].Ports {
			name := p.Name
			if name == "" {
				name = fmt.Sprintf("%s-%s:%d:%d", p.Protocol, p.HostIP, p.ContainerPort, p.HostPort)
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			all = append(all, &runtimeapi.PortMapping{
				Protocol: protocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
			})
		}
	}
	return all
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	case v1.ProtocolTCP:
		return runtimeapi.Protocol_TCP
	}
	return runtimeapi.Protocol_TCP
}

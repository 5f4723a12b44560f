package scheduler

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// anyAddress is the host address of a port that gives none.
const anyAddress = "0.0.0.0"

// hostPort is one port of a node that a Pod takes for itself.
type hostPort struct {
	address  string
	protocol v1.Protocol
	port     int32
}

// hostPortsOf lists the host ports of containers and sidecars, sorted. Other
// init containers do not count: they have ended before their Pod serves.
func hostPortsOf(pod *v1.Pod) []hostPort {
	var ports []hostPort
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			ports = appendHostPorts(ports, c)
		}
	}
	for i := range pod.Spec.Containers {
		ports = appendHostPorts(ports, &pod.Spec.Containers[i])
	}
	slices.SortFunc(ports, func(a, b hostPort) int {
		return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.address, b.address))
	})
	return ports
}

func appendHostPorts(ports []hostPort, c *v1.Container) []hostPort {
	for _, p := range c.Ports {
		if p.HostPort <= 0 {
			continue
		}
		ports = append(ports, hostPort{
			address:  cmp.Or(p.HostIP, anyAddress),
			protocol: cmp.Or(p.Protocol, v1.ProtocolTCP),
			port:     p.HostPort,
		})
	}
	return ports
}

// conflictsWith says whether both cannot be had on one node: the same port and
// protocol, on the same address or with either on every address.
func (p hostPort) conflictsWith(other hostPort) bool {
	return p.port == other.port && p.protocol == other.protocol &&
		(p.address == other.address || p.address == anyAddress || other.address == anyAddress)
}

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"mend/internal/agent"
)

// startNode runs this machine's agent. Its kubelet API listens on return.
func (h *host) startNode(ctx context.Context) error {
	p := h.p
	name, err := p.config.nodeName()
	if err != nil {
		return err
	}
	config, err := p.agentConfig(name)
	if err != nil {
		return err
	}
	config.Runtime, config.Images = h.runtime, h.puller
	if h.supervisor != nil {
		config.Exits = h.supervisor.Exits
	}
	config.DataDir, config.LogDir = p.instance.Path("agent"), p.instance.Path("pod-logs")
	config.CgroupParent = p.instance.CgroupParent()
	if p.config.CPUs > 0 {
		config.Capacity = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(p.config.CPUs), resource.DecimalSI)}
	}
	if h.network != nil {
		config.PodCIDRs = h.podRanges()
	}
	config.NodeIPs = h.nodeAddresses()
	if len(config.NodeIPs) == 0 {
		return errors.New("this machine has no address but loopback for the node")
	}
	if h.services != nil {
		if err := h.services.carry(ctx, config.NodeIPs); err != nil {
			return err
		}
		config.Gate, config.ClusterDNS = h.services.podGate(), []string{h.services.clusterDNS().String()}
	}
	return h.startAgent(config)
}

func (h *host) startAgent(config agent.Config) error {
	p := h.p
	made, err := agent.New(config)
	if err != nil {
		return err
	}
	if h.services != nil {
		h.services.agent.Store(made)
	}
	p.agentsMu.Lock() // somebody may want mend down while it still starts
	p.nodeNames, p.agents = append(p.nodeNames, config.NodeName), append(p.agents, made)
	p.agentsMu.Unlock()
	p.nodes.run(func(ctx context.Context) {
		if err := made.Run(ctx); err != nil {
			p.fail(fmt.Errorf("the agent of node %s ended: %w", config.NodeName, err))
		}
	})
	return nil
}

// nodeAddresses are the node's, one of each of its families, IPv4 first: by which it
// reaches others, or on a machine without a network by which its Pods reach it.
func (h *host) nodeAddresses() []string {
	four, six := hostAddress(), ""
	if n := h.network; n != nil {
		four = cmp.Or(four, n.Gateway.String())
		if n.Gateway6.IsValid() {
			six = cmp.Or(hostAddress6(), n.Gateway6.String())
		}
	}
	return slices.DeleteFunc([]string{four, six}, func(a string) bool { return a == "" })
}

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"mend/internal/agent"
	"mend/internal/controller/apiservice"
	"mend/internal/controller/replicaset"
	"mend/internal/instance"
	"mend/internal/network"
	"mend/internal/network/catalog"
	"mend/internal/network/dns/feed"
	"mend/internal/network/families"
	"mend/internal/network/proxy"
	"mend/internal/traffic"
)

const (
	// rulesLimit bounds the wait for the first rules of Services, before Pods start.
	rulesLimit = 10 * time.Second
	// publishFirst and publishMost bound the pause between two tries to publish the
	// cluster's DNS.
	publishFirst = 100 * time.Millisecond
	publishMost  = 10 * time.Second
	// dnsAddress is the number of the DNS Service's address in the range, as kubeadm
	// has it.
	dnsAddress = 10
)

var dnsService = catalog.Key{Namespace: metav1.NamespaceSystem, Name: feed.ServiceName}

// services carries Services on this node: what they are, the kernel's rules, the
// cluster's DNS, and the gate between a Pod's end and the requests that reach it.
type services struct {
	p            *process
	host         *host
	node         string
	catalog      *catalog.Catalog
	acks         *traffic.Acks
	gate         *traffic.Gate
	acknowledger *traffic.Acknowledger
	client       kubernetes.Interface
	agent        atomic.Pointer[agent.Agent]
	feed         atomic.Pointer[feed.Feed] // nil until carry
	programmed   atomic.Uint64             // newest EndpointSlice version in the kernel
}

// serve does nothing without a Pod network of ours: there are no Services then.
func (h *host) serve() error {
	if h.network == nil {
		return nil
	}
	if err := h.servePods(); err != nil {
		return err
	}
	return h.watchServices()
}

// watchServices makes the picture of Services and the gate, for the loops and the
// agent.
func (h *host) watchServices() error {
	p := h.p
	name, err := p.config.nodeName()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(p.api.ClientConfig("proxy:" + name))
	if err != nil {
		return err
	}
	s := &services{p: p, host: h, node: name, client: client, catalog: catalog.New(), acks: traffic.NewAcks(name),
		acknowledger: traffic.NewAcknowledger(client, name, p.log)}
	s.gate = traffic.NewGate(traffic.Config{Catalog: s.catalog, Acks: s.acks, NetNS: s.netNS, Log: p.log})
	p.loops.run(func(ctx context.Context) { s.catalog.Run(ctx, client, p.log) })
	p.loops.run(func(ctx context.Context) { s.acks.Run(ctx, client, p.log) })
	p.loops.run(s.gate.Run)
	h.services = s
	return nil
}

// podGate is what the agent asks whether a Pod's end may begin.
func (s *services) podGate() agent.Gate {
	if !s.p.config.ConfirmTraffic {
		return nil
	}
	return s.gate
}

func (s *services) netNS(pod types.UID) (path string, ok bool) {
	if a := s.agent.Load(); a != nil {
		return a.NetNS(pod)
	}
	return "", false
}

// carry runs proxy and DNS, and returns when the kernel has the rules of all
// Services: a Pod that starts may need them at once.
func (s *services) carry(ctx context.Context, nodeIPs []string) error {
	if err := s.acknowledger.Announce(ctx); err != nil {
		return err
	}
	if !s.host.network.PodCIDR6.IsValid() && families.HasIPv6() {
		// What an earlier start may have left, with both families.
		if err := proxy.Remove(s.p.instance.ID, proxy.IPv6); err != nil {
			return fmt.Errorf("service proxy: %w", err)
		}
	}
	first := make(chan struct{})
	carrier, err := proxy.New(s.proxyConfig(nodeIPs, sync.OnceFunc(func() { close(first) })))
	if err != nil {
		return fmt.Errorf("service proxy: %w", err)
	}
	listening := make(chan netip.AddrPort, 1)
	dns, err := feed.New(feed.Config{
		Command: []string{filepath.Join(s.host.supervisor.BinDir(), "mend-dns")}, RunDir: s.p.instance.RunDir(),
		Zone: clusterDomain, Address: s.host.network.Gateway, Catalog: s.catalog, Log: s.p.log,
		Listening: func(at netip.AddrPort) {
			select {
			case listening <- at:
			case <-s.p.nodes.ctx.Done(): // nobody publishes any more
			}
		},
	})
	if err != nil {
		return err
	}
	s.feed.Store(dns)
	s.p.nodes.run(s.acknowledger.Run)
	s.p.nodes.run(carrier.Run)
	s.p.nodes.run(dns.Run)
	s.p.nodes.run(func(ctx context.Context) { s.publish(ctx, listening) })
	select {
	case <-first:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rulesLimit):
		s.p.log.Warn("Pods start although the kernel has not all rules of Services yet", "after", rulesLimit)
		return nil
	}
}

func (s *services) proxyConfig(nodeIPs []string, first func()) proxy.Config {
	network := s.host.network
	c := proxy.Config{
		InstanceID: s.p.instance.ID, NodeName: s.node, Bridge: network.Bridge, Families: []proxy.Family{proxy.IPv4},
		PodRanges: []netip.Prefix{network.PodCIDR}, ServiceRanges: []netip.Prefix{s.p.serviceRange},
		Catalog: s.catalog, Events: s.p.recorder(corev1.EventSource{Component: "kube-proxy", Host: s.node}), Log: s.p.log,
		Programmed: func(version uint64) {
			s.acks.Programmed(version)
			s.acknowledger.Programmed(version)
			s.programmed.Store(version)
			first()
		},
	}
	if network.PodCIDR6.IsValid() {
		c.Families = append(c.Families, proxy.IPv6)
		c.PodRanges = append(c.PodRanges, network.PodCIDR6)
		c.ServiceRanges = append(c.ServiceRanges, s.p.serviceRange6)
	}
	for _, text := range nodeIPs {
		if ip, err := netip.ParseAddr(text); err == nil {
			c.NodeAddrs = append(c.NodeAddrs, ip)
		}
	}
	return c
}

// clusterDNS is the address of the DNS Service.
func (s *services) clusterDNS() netip.Addr {
	ip := s.p.serviceRange.Masked().Addr()
	for range dnsAddress {
		ip = ip.Next()
	}
	return ip
}

// publish makes the DNS Service lead to wherever the program says it listens, and again
// when somebody takes it away.
func (s *services) publish(ctx context.Context, listening <-chan netip.AddrPort) {
	var at netip.AddrPort
	var again <-chan time.Time
	wait := publishFirst
	follower := s.catalog.Follow()
	for {
		select {
		case <-ctx.Done():
			return
		case at = <-listening:
			wait = publishFirst
		case <-follower.Changed():
			changes, _ := follower.Take()
			if _, touched := changes.Services[dnsService]; !touched || !at.IsValid() {
				continue
			}
		case <-again:
			wait = min(2*wait, publishMost)
		}
		again = nil
		publication := feed.Publication{Node: s.node, ClusterIP: s.clusterDNS(), At: at}
		if err := publication.Publish(ctx, s.client); err != nil && ctx.Err() == nil {
			s.p.log.Warn("the cluster's DNS cannot be published; it will be tried again", "err", err)
			again = time.After(wait)
		}
	}
}

// registered has the confirmations go with the Node, now that it has. Nothing else
// depends on it.
func (h *host) registered(ctx context.Context) {
	s := h.services
	if s == nil {
		return
	}
	node, err := s.client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	if err == nil {
		err = s.acknowledger.Belong(ctx, node.UID)
	}
	if err != nil {
		s.p.log.Warn("when the node is removed, its proxy's confirmation stays", "err", err)
	}
}

// withdraw takes rules and DNS away, once no Pod runs any more.
func (s *services) withdraw(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return errors.Join(s.acknowledger.Withdraw(ctx), endServices(s.p.instance))
}

// endServices removes what carries an instance's Services, whoever left it there.
func endServices(i instance.Instance) error {
	return errors.Join(feed.Stop(i.RunDir()), proxy.Remove(i.ID))
}

func (s *services) describe(status *Status) {
	if s == nil {
		return
	}
	rules := ComponentStatus{Name: "service proxy", Healthy: s.programmed.Load() > 0}
	if !rules.Healthy {
		rules.Message = "the kernel has not all rules of Services yet"
	}
	dns := ComponentStatus{Name: "cluster DNS", Message: "it does not answer yet"}
	if program := s.feed.Load(); program != nil {
		if at, pid, ok := program.Listen(); ok {
			dns.Healthy, dns.Message = true, fmt.Sprintf("pid %d at %v", pid, at)
			status.Memory["dns"] = residentBytes(pid)
		}
	}
	status.Components = append(status.Components, rules, dns)
}

// isDualStack says whether Pods and Services can have IPv6 addresses too: on a network of
// ours, where the machine has IPv6 and nobody asked for IPv4 alone.
func (p *process) isDualStack() bool {
	return p.config.Simulate == 0 && p.config.RuntimeEndpoint == "" && p.config.IPFamilies != OnlyIPv4 && families.HasIPv6()
}

func (h *host) serviceRanges() (four, six netip.Prefix, err error) {
	if four, err = network.ServiceRange(networkConfig(h.p.instance, h.p)); err == nil && h.p.isDualStack() {
		six, err = network.ServiceRange6(networkConfig(h.p.instance, h.p))
	}
	return four, six, err
}

// routing is what the ReplicaSet loop asks whether requests reach a Pod.
func (h *host) routing() replicaset.Routing {
	if h.services == nil || !h.p.config.ConfirmTraffic {
		return nil
	}
	return h.services.gate
}

// servePods makes the API listen where Pods reach it, on the node's address in its Pod
// range, and leads default/kubernetes there.
func (h *host) servePods() error {
	p, gateway := h.p, h.network.Gateway.String()
	listener, err := net.Listen("tcp", net.JoinHostPort(gateway, strconv.Itoa(int(p.apiService.Port))))
	if err != nil { // somebody has the port on all addresses
		listener, err = net.Listen("tcp", net.JoinHostPort(gateway, "0"))
	}
	if err != nil {
		return fmt.Errorf("the API for Pods: %w", err)
	}
	p.apiService = apiservice.Config{Addresses: []string{gateway}, Port: int32(listener.Addr().(*net.TCPAddr).Port)}
	p.control.run(func(ctx context.Context) {
		if err := p.api.Serve(ctx, listener, gateway); err != nil {
			p.fail(fmt.Errorf("the API server for Pods ended: %w", err))
		}
	})
	return nil
}

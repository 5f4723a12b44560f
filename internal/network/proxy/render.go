package proxy

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	serviceapi "k8s.io/kubernetes/pkg/api/v1/service"

	"mend/internal/network/catalog"
)

// labelServiceProxyName is on Services that another proxy carries.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// render is the Service's part of the table. It is pure, and the same whatever the order
// of the input.
func render(c Config, s catalog.Service) Rendering {
	var out Rendering
	if !isCarried(s.Object) {
		return out
	}
	localReady := sets.New[netip.Addr]()
	for _, family := range c.families() {
		byPort := readEndpoints(s.Slices, family, c.NodeName)
		for i := range s.Object.Spec.Ports {
			p := &s.Object.Spec.Ports[i]
			all := byPort[portKey{name: p.Name, protocol: p.Protocol}]
			r := portRenderer{c: c, family: family, service: s.Object, port: p, all: all, choice: choose(all, c.NodeName, c.Zone)}
			r.render(&out)
			for _, e := range all {
				if e.local && e.ready {
					localReady.Insert(e.at.Addr())
				}
			}
		}
	}
	if serviceapi.NeedsHealthCheck(s.Object) && s.Object.Spec.HealthCheckNodePort != 0 {
		out.Health = &Health{Port: uint16(s.Object.Spec.HealthCheckNodePort), LocalEndpoints: localReady.Len()}
	}
	out.Elements = sortElements(out.Elements)
	return out
}

// isCarried says whether the Service has an address for this proxy to carry.
func isCarried(s *v1.Service) bool {
	if s == nil || s.Spec.Type == v1.ServiceTypeExternalName {
		return false
	}
	if _, others := s.Labels[labelServiceProxyName]; others {
		return false
	}
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != v1.ClusterIPNone
}

// portRenderer renders one port of a Service in one family.
type portRenderer struct {
	c       Config
	family  Family
	service *v1.Service
	port    *v1.ServicePort
	all     []endpoint
	choice
}

func (r *portRenderer) render(out *Rendering) {
	clusterIPs := r.clusterIPs()
	if len(clusterIPs) == 0 {
		return // the Service is not of this family
	}
	vips := r.loadBalancerIPs()
	external := append(r.addrs(r.service.Spec.ExternalIPs), vips...)
	for _, a := range clusterIPs {
		r.add(out, setClusterIPs, packAddr(a), "")
		r.internal(out, a)
	}
	for _, a := range external {
		r.external(out, a)
	}
	if r.port.NodePort != 0 {
		r.external(out, netip.Addr{})
	}
	r.firewall(out, vips)
	if len(r.all) > 0 {
		r.hairpins(out, len(external) > 0 || r.port.NodePort != 0)
	}
	if r.protocol() == TCP {
		r.ending(out)
	}
	if r.protocol() == UDP {
		r.conntrack(out, append(clusterIPs, external...))
	}
}

func (r *portRenderer) add(out *Rendering, set, key, value string) {
	out.Elements = append(out.Elements, Element{Family: r.family, Set: set, Key: key, Value: value})
}

// addrs parses those addresses that are of this family.
func (r *portRenderer) addrs(all []string) []netip.Addr {
	var of []netip.Addr
	for _, text := range all {
		if a, err := netip.ParseAddr(text); err == nil && familyOf(a.Unmap()) == r.family {
			of = append(of, a.Unmap())
		}
	}
	return of
}

func (r *portRenderer) clusterIPs() []netip.Addr {
	all := r.service.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{r.service.Spec.ClusterIP}
	}
	return r.addrs(all)
}

// loadBalancerIPs are those that load balancers leave in the packet. With mode Proxy
// the balancer connects to the node by itself.
func (r *portRenderer) loadBalancerIPs() []netip.Addr {
	var all []string
	for _, i := range r.service.Status.LoadBalancer.Ingress {
		if i.IPMode == nil || *i.IPMode == v1.LoadBalancerIPModeVIP {
			all = append(all, i.IP)
		}
	}
	return r.addrs(all)
}

func (r *portRenderer) protocol() Protocol {
	switch r.port.Protocol {
	case v1.ProtocolUDP:
		return UDP
	case v1.ProtocolSCTP:
		return SCTP
	case v1.ProtocolTCP:
		return TCP
	default:
		return TCP // the API's own default
	}
}

func (r *portRenderer) sticky() int {
	if r.service.Spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return 0
	}
	if config := r.service.Spec.SessionAffinityConfig; config != nil && config.ClientIP != nil && config.ClientIP.TimeoutSeconds != nil {
		return int(*config.ClientIP.TimeoutSeconds)
	}
	return int(v1.DefaultClientIPServiceAffinitySeconds)
}

// front is one way to a Service's port: an address, or any of the node's for a node
// port (then addr is invalid).
type front struct {
	*portRenderer
	addr   netip.Addr
	number uint16
}

// key is the front's key in sets and maps.
func (f front) key() string {
	k := packProtocol(f.protocol()) + packPort(f.number)
	if f.addr.IsValid() {
		k = packAddr(f.addr) + k
	}
	return k
}

// pick chooses between the names of two sets alike.
func (f front) pick(byAddr, byNodePort string) string {
	if f.addr.IsValid() {
		return byAddr
	}
	return byNodePort
}

// internal leads a ClusterIP to the endpoints of the internal policy.
func (r *portRenderer) internal(out *Rendering, a netip.Addr) {
	f := front{portRenderer: r, addr: a, number: uint16(r.port.Port)}
	chosen := r.cluster
	if serviceapi.InternalPolicyLocal(r.service) {
		chosen = r.local
	}
	if len(chosen) == 0 {
		f.unserved(out)
		return
	}
	f.lead(out, Class{Kind: Internal, Cluster: len(chosen)}, chosen, nil)
}

// external leads an external address, or the node port, to the endpoints of the
// external policy.
func (r *portRenderer) external(out *Rendering, a netip.Addr) {
	f := front{portRenderer: r, addr: a, number: uint16(r.port.Port)}
	if !a.IsValid() {
		f.number = uint16(r.port.NodePort)
	}
	switch local := serviceapi.ExternalPolicyLocal(r.service); {
	case !r.any:
		f.unserved(out)
	case local:
		if len(r.local) == 0 {
			f.unserved(out) // for those outside; the rest is led on
		}
		f.lead(out, Class{Kind: ExternalLocal, Cluster: len(r.cluster), Local: len(r.local)}, r.cluster, r.local)
	default:
		f.lead(out, Class{Kind: External, Cluster: len(r.cluster)}, r.cluster, nil)
	}
}

// unserved refuses what nobody can answer, and drops what somebody could, elsewhere.
func (f front) unserved(out *Rendering) {
	if f.any {
		f.add(out, f.pick(setDrop, setDropNodePorts), f.key(), "")
		return
	}
	f.add(out, f.pick(setReject, setRejectNodePorts), f.key(), "")
}

func (f front) lead(out *Rendering, k Class, cluster, local []endpoint) {
	k.NodePort, k.Sticky = !f.addr.IsValid(), f.sticky()
	f.add(out, f.pick(setServices, setNodePorts), f.key(), packClass(k))
	for from, list := range map[int][]endpoint{0: cluster, localFrom: local} {
		for i, e := range list {
			at := packAddr(e.at.Addr()) + packPort(e.at.Port())
			f.add(out, f.pick(setEndpoints, setNodePortEndpoints), f.key()+packIndex(from+i), at)
			if k.Sticky > 0 {
				f.add(out, f.pick(setSticky, setStickyNodePorts), f.key()+at, "")
			}
		}
	}
}

// hairpins let an endpoint reach itself through the Service: it could not take a packet
// from its own address.
func (r *portRenderer) hairpins(out *Rendering, external bool) {
	used := slices.Clone(r.cluster)
	if serviceapi.InternalPolicyLocal(r.service) || external && serviceapi.ExternalPolicyLocal(r.service) {
		used = append(used, r.local...)
	}
	for _, e := range used {
		if e.local {
			r.add(out, setHairpin, packAddr(e.at.Addr())+packAddr(e.at.Addr()), "")
		}
	}
}

// ending names the endpoints that end.
func (r *portRenderer) ending(out *Rendering) {
	for _, e := range r.all {
		if e.terminating {
			r.add(out, setEnding, packAddr(e.at.Addr())+packPort(e.at.Port()), "")
		}
	}
}

// firewall keeps a load balancer's addresses to the ranges that the Service names.
func (r *portRenderer) firewall(out *Rendering, vips []netip.Addr) {
	ranges := r.sourceRanges()
	if len(ranges) == 0 {
		return
	}
	for _, vip := range vips {
		f := front{portRenderer: r, addr: vip, number: uint16(r.port.Port)}
		f.add(out, setFirewalled, f.key(), "")
		allowed := ranges
		if slices.ContainsFunc(r.c.NodeAddrs, func(a netip.Addr) bool { return contains(ranges, a) }) {
			// A request of the node itself comes from the very address it goes to.
			allowed = disjoint(append(slices.Clone(ranges), netip.PrefixFrom(vip, vip.BitLen())))
		}
		for _, p := range allowed {
			out.Elements = append(out.Elements, Element{Family: r.family, Set: setAllowed,
				Key: f.key() + packAddr(p.Addr()), End: f.key() + packAddr(last(p))})
		}
	}
}

// sourceRanges are the ranges of this family; none when all sources may come.
func (r *portRenderer) sourceRanges() []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range r.service.Spec.LoadBalancerSourceRanges {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || familyOf(p.Addr()) != r.family {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		ranges = append(ranges, p.Masked())
	}
	return disjoint(ranges)
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// disjoint drops the ranges that lie within another: the kernel refuses overlaps.
func disjoint(ranges []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var kept []netip.Prefix
	for _, p := range ranges {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// last is the last address of a range.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// conntrack notes who may answer at which of the port's addresses.
func (r *portRenderer) conntrack(out *Rendering, addrs []netip.Addr) {
	who := serving(r.all)
	for _, a := range addrs {
		out.UDP = append(out.UDP, UDPPort{Addr: a, Port: uint16(r.port.Port), Serving: who})
	}
	if r.port.NodePort != 0 {
		out.UDP = append(out.UDP, UDPPort{Port: uint16(r.port.NodePort), Serving: who})
	}
}

package proxy

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// endpoint is one place where one port of a Service is answered.
type endpoint struct {
	at                          netip.AddrPort
	ready, serving, terminating bool
	local                       bool // on this node
	zones, nodes                []string
}

// portKey tells the ports of a Service apart, in the Service and in its slices.
type portKey struct {
	name     string
	protocol v1.Protocol
}

// readEndpoints collects the endpoints of one family from a Service's slices, per port,
// sorted by address. An endpoint that is there twice counts once: see preferred.
func readEndpoints(all []*discovery.EndpointSlice, family Family, nodeName string) map[portKey][]endpoint {
	byPort := map[portKey]map[netip.AddrPort]endpoint{}
	for _, s := range all {
		if s.AddressType != addressType(family) {
			continue
		}
		for i := range s.Ports {
			if s.Ports[i].Port == nil {
				continue
			}
			key := keyOf(&s.Ports[i])
			if byPort[key] == nil {
				byPort[key] = map[netip.AddrPort]endpoint{}
			}
			for j := range s.Endpoints {
				e, ok := readEndpoint(&s.Endpoints[j], uint16(*s.Ports[i].Port), nodeName)
				if old, there := byPort[key][e.at]; ok && (!there || e.preferred(old)) {
					byPort[key][e.at] = e
				}
			}
		}
	}
	sorted := make(map[portKey][]endpoint, len(byPort))
	for key, byAddr := range byPort {
		for _, e := range byAddr {
			sorted[key] = append(sorted[key], e)
		}
		slices.SortFunc(sorted[key], func(a, b endpoint) int { return a.at.Compare(b.at) })
	}
	return sorted
}

// preferred says which of two endpoints with one address counts. An address can belong
// to a Pod that ends and to the next one that has it, and an endpoint that moves between
// slices is in both for a moment: what serves wins.
func (e endpoint) preferred(other endpoint) bool {
	rank := func(e endpoint) []bool { return []bool{!e.terminating, e.ready, e.serving, e.local} }
	for i, better := range rank(e) {
		if than := rank(other)[i]; better != than {
			return better
		}
	}
	return cmp.Or(slices.Compare(e.nodes, other.nodes), slices.Compare(e.zones, other.zones)) < 0
}

func addressType(family Family) discovery.AddressType {
	if family == IPv6 {
		return discovery.AddressTypeIPv6
	}
	return discovery.AddressTypeIPv4
}

func keyOf(p *discovery.EndpointPort) portKey {
	key := portKey{protocol: v1.ProtocolTCP}
	if p.Name != nil {
		key.name = *p.Name
	}
	if p.Protocol != nil {
		key.protocol = *p.Protocol
	}
	return key
}

// readEndpoint reads one endpoint; what is not said means ready, serving, and not
// terminating. Only the first address counts.
func readEndpoint(e *discovery.Endpoint, port uint16, nodeName string) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		return endpoint{}, false
	}
	is := func(condition *bool, otherwise bool) bool {
		if condition == nil {
			return otherwise
		}
		return *condition
	}
	out := endpoint{
		at:          netip.AddrPortFrom(addr.Unmap(), port),
		ready:       is(e.Conditions.Ready, true),
		serving:     is(e.Conditions.Serving, true),
		terminating: is(e.Conditions.Terminating, false),
		local:       e.NodeName != nil && nodeName != "" && *e.NodeName == nodeName,
	}
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			out.zones = append(out.zones, z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			out.nodes = append(out.nodes, n.Name)
		}
	}
	return out, true
}

// choice is which endpoints are used by which traffic policy.
type choice struct {
	cluster, local []endpoint
	// any says that someone could answer somewhere: then a port without endpoints of its
	// policy is silent, not refused.
	any bool
}

// choose applies the rules of Kubernetes: ready endpoints, those near by if every one
// has a hint; if none is ready, those that end but still serve. Cluster and local
// endpoints are judged independently.
func choose(all []endpoint, node, zone string) choice {
	ready := filter(all, func(e endpoint) bool { return e.ready })
	ending := filter(all, func(e endpoint) bool { return !e.ready && e.serving && e.terminating })
	c := choice{any: len(ready)+len(ending) > 0}
	if c.cluster = nearby(ready, node, zone); len(c.cluster) == 0 {
		c.cluster = ending
	}
	isLocal := func(e endpoint) bool { return e.local }
	if c.local = filter(ready, isLocal); len(c.local) == 0 {
		c.local = filter(ending, isLocal)
	}
	c.cluster = c.cluster[:min(len(c.cluster), mostEndpoints)]
	c.local = c.local[:min(len(c.local), mostEndpoints)]
	return c
}

// nearby keeps the endpoints hinted for this node, or else for its zone, provided that
// every ready endpoint has such a hint and one fits.
func nearby(ready []endpoint, node, zone string) []endpoint {
	for _, hint := range []struct {
		of   func(endpoint) []string
		here string
	}{
		{func(e endpoint) []string { return e.nodes }, node},
		{func(e endpoint) []string { return e.zones }, zone},
	} {
		if slices.ContainsFunc(ready, func(e endpoint) bool { return len(hint.of(e)) == 0 }) {
			continue
		}
		if near := filter(ready, func(e endpoint) bool { return slices.Contains(hint.of(e), hint.here) }); len(near) > 0 {
			return near
		}
	}
	return ready
}

func filter(all []endpoint, keep func(endpoint) bool) []endpoint {
	var kept []endpoint
	for _, e := range all {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// serving are those whose connections in flight may go on.
func serving(all []endpoint) []netip.AddrPort {
	var at []netip.AddrPort
	for _, e := range all {
		if e.serving {
			at = append(at, e.at)
		}
	}
	slices.SortFunc(at, func(a, b netip.AddrPort) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Port(), b.Port()))
	})
	return at
}

package feed

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"mend/internal/network/catalog"
	"mend/internal/network/dns"
)

// batch is what the program is told of changes.
func batch(changes catalog.Changes) dns.Batch {
	b := dns.Batch{Full: changes.First, Version: changes.Version}
	for key, s := range changes.Services {
		if s.Object == nil {
			if !changes.First {
				b.Delete = append(b.Delete, dns.Key{Namespace: key.Namespace, Name: key.Name})
			}
			continue
		}
		b.Put = append(b.Put, record(s))
	}
	return b
}

// record is what names show of a Service.
func record(s catalog.Service) dns.Service {
	r := dns.Service{Key: dns.Key{Namespace: s.Object.Namespace, Name: s.Object.Name}}
	spec := &s.Object.Spec
	switch {
	case spec.Type == v1.ServiceTypeExternalName:
		r.External = strings.ToLower(spec.ExternalName)
	case spec.ClusterIP == v1.ClusterIPNone:
		r.Endpoints = endpoints(s.Slices)
	default:
		r.Addresses = addresses(spec)
		for _, p := range spec.Ports {
			r.Ports = append(r.Ports, dns.Port{Name: p.Name, Protocol: strings.ToLower(string(p.Protocol)), Port: uint16(p.Port)})
		}
	}
	return r
}

func addresses(spec *v1.ServiceSpec) []netip.Addr {
	texts := spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{spec.ClusterIP}
	}
	var all []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// endpoints are the ready ones, sorted. publishNotReadyAddresses makes them all ready.
func endpoints(slicesOf []*discovery.EndpointSlice) []dns.Endpoint {
	byAddr := map[netip.Addr]*dns.Endpoint{}
	for _, slice := range slicesOf {
		var ports []dns.Port
		for _, p := range slice.Ports {
			if p.Port != nil {
				ports = append(ports, dns.Port{Name: value(p.Name, ""), Protocol: strings.ToLower(string(value(p.Protocol, v1.ProtocolTCP))), Port: uint16(*p.Port)})
			}
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !value(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				continue // a name, or nonsense
			}
			if byAddr[a] == nil {
				byAddr[a] = &dns.Endpoint{Address: a}
			}
			if host := value(e.Hostname, ""); host != "" {
				byAddr[a].Hostname = host
			}
			byAddr[a].Ports = append(byAddr[a].Ports, ports...)
		}
	}
	var all []dns.Endpoint
	for _, e := range byAddr {
		slices.SortFunc(e.Ports, func(a, b dns.Port) int {
			return strings.Compare(a.Name+"/"+a.Protocol, b.Name+"/"+b.Protocol)
		})
		e.Ports = slices.Compact(e.Ports)
		all = append(all, *e)
	}
	slices.SortFunc(all, func(a, b dns.Endpoint) int { return a.Address.Compare(b.Address) })
	return all
}

func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

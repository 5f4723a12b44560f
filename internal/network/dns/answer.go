package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// ttl is how long an answer may be kept, in seconds: endpoints come and go.
const ttl = 5

// specification is the version of the DNS specification that dns-version tells.
const specification = "1.1.0"

// answerer answers the names of one zone.
type answerer struct {
	zone string // fully qualified, in lower case
	view *view
	// self is where ns.dns.<zone> is.
	self []netip.Addr
}

// found is what a name has. A name that exists may have nothing of the type asked for.
type found struct {
	exists  bool
	records []dns.RR
	extra   []dns.RR
	// alias is where an ExternalName leads, for the server to follow.
	alias string
}

// nothing is a name that is not there, empty one without records of the type.
var (
	nothing = found{}
	empty   = found{exists: true}
)

// owns says whether a name is the zone's.
func (a *answerer) owns(name string) bool { return dns.IsSubDomain(a.zone, name) }

// lookUp answers a question about a name of the zone; ok is false while nothing is known.
func (a *answerer) lookUp(q dns.Question) (f found, ok bool) {
	a.view.mu.RLock()
	defer a.view.mu.RUnlock()
	name := strings.ToLower(q.Name)
	labels := dns.SplitDomainName(strings.TrimSuffix(name, a.zone))
	switch {
	case len(labels) == 0:
		return a.apex(q), true
	case len(labels) == 1 && labels[0] == "dns-version":
		return only(q, dns.TypeTXT, &dns.TXT{Hdr: header(q.Name, dns.TypeTXT), Txt: []string{specification}}), true
	case labels[len(labels)-1] == "dns":
		if len(labels) == 2 && labels[0] == "ns" {
			return found{exists: true, records: addresses(q.Name, q.Qtype, a.self)}, true
		}
		return found{exists: len(labels) == 1}, true
	case !a.view.known:
		return nothing, false
	case labels[len(labels)-1] == "svc":
		return a.service(q, labels[:len(labels)-1]), true
	case labels[len(labels)-1] == "pod":
		return a.pod(q, labels[:len(labels)-1]), true
	}
	return nothing, true
}

func (a *answerer) apex(q dns.Question) found {
	switch q.Qtype {
	case dns.TypeSOA:
		return found{exists: true, records: []dns.RR{a.soa()}}
	case dns.TypeNS:
		server := "ns.dns." + a.zone
		return found{exists: true, records: []dns.RR{&dns.NS{Hdr: header(a.zone, dns.TypeNS), Ns: server}},
			extra: append(addresses(server, dns.TypeA, a.self), addresses(server, dns.TypeAAAA, a.self)...)}
	}
	return empty
}

// soa is the zone's start of authority; negative answers are kept as long as others.
func (a *answerer) soa() dns.RR {
	return &dns.SOA{Hdr: header(a.zone, dns.TypeSOA), Ns: "ns.dns." + a.zone, Mbox: "hostmaster." + a.zone,
		Serial: a.view.serial, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// only is a name with records of one type.
func only(q dns.Question, kind uint16, records ...dns.RR) found {
	if q.Qtype != kind {
		return empty
	}
	return found{exists: true, records: records}
}

// addresses are the A or AAAA records of a name.
func addresses(name string, kind uint16, all []netip.Addr) []dns.RR {
	var records []dns.RR
	for _, a := range all {
		switch {
		case kind == dns.TypeA && a.Is4():
			records = append(records, &dns.A{Hdr: header(name, kind), A: a.AsSlice()})
		case kind == dns.TypeAAAA && a.Is6():
			records = append(records, &dns.AAAA{Hdr: header(name, kind), AAAA: a.AsSlice()})
		}
	}
	return records
}

// service answers what is below svc.<zone>.
func (a *answerer) service(q dns.Question, labels []string) found {
	if len(labels) == 0 {
		return empty
	}
	services, there := a.view.services[labels[len(labels)-1]]
	if !there {
		return nothing
	}
	if len(labels) == 1 {
		return empty
	}
	s := services[labels[len(labels)-2]]
	switch rest := labels[:len(labels)-2]; {
	case s == nil:
		return nothing
	case s.External != "":
		if len(rest) > 0 {
			return nothing
		}
		target := dns.Fqdn(s.External)
		return found{exists: true, records: []dns.RR{&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: target}}, alias: target}
	case len(rest) == 0:
		return a.whole(q, s)
	case strings.HasPrefix(rest[len(rest)-1], "_"):
		return a.port(q, s, rest)
	case len(rest) == 1:
		return a.endpoint(q, s, rest[0])
	}
	return nothing
}

// whole answers a Service's own name.
func (a *answerer) whole(q dns.Question, s *Service) found {
	if q.Qtype == dns.TypeSRV {
		return a.targets(q, s, func(Port) bool { return true })
	}
	all := s.Addresses
	if len(all) == 0 {
		for _, e := range s.Endpoints {
			if !slices.Contains(all, e.Address) {
				all = append(all, e.Address)
			}
		}
		if len(all) == 0 {
			return nothing // headless, and nobody is ready: as upstream's servers answer
		}
	}
	return found{exists: true, records: addresses(q.Name, q.Qtype, all)}
}

// port answers _port._protocol.<service>, and that there is _protocol.<service>.
func (a *answerer) port(q dns.Question, s *Service, labels []string) found {
	protocol := strings.TrimPrefix(labels[len(labels)-1], "_")
	if len(labels) == 1 {
		if f := a.targets(q, s, func(p Port) bool { return p.Protocol == protocol }); f.exists {
			return empty
		}
		return nothing
	}
	name, isPort := strings.CutPrefix(labels[0], "_")
	if len(labels) != 2 || !isPort {
		return nothing
	}
	f := a.targets(q, s, func(p Port) bool { return p.Name == name && p.Protocol == protocol })
	if f.exists && q.Qtype != dns.TypeSRV {
		return empty
	}
	return f
}

// targets are the SRV records of those ports that are wanted. Ports without a name have
// none.
func (a *answerer) targets(q dns.Question, s *Service, want func(Port) bool) found {
	var f found
	seen := map[string]bool{}
	base := s.Name + "." + s.Namespace + ".svc." + a.zone
	add := func(ports []Port, target string, at []netip.Addr) {
		for _, p := range ports {
			if p.Name == "" || !want(p) {
				continue
			}
			f.exists = true
			f.records = append(f.records, &dns.SRV{Hdr: header(q.Name, dns.TypeSRV), Port: p.Port, Target: target})
			if !seen[target] {
				seen[target] = true
				f.extra = append(append(f.extra, addresses(target, dns.TypeA, at)...), addresses(target, dns.TypeAAAA, at)...)
			}
		}
	}
	add(s.Ports, base, s.Addresses)
	for _, e := range s.Endpoints {
		add(e.Ports, e.host()+"."+base, []netip.Addr{e.Address})
	}
	for _, rr := range f.records {
		rr.(*dns.SRV).Weight = uint16(max(100/len(f.records), 1))
	}
	return f
}

// endpoint answers <host>.<service>, which headless Services' Pods have.
func (a *answerer) endpoint(q dns.Question, s *Service, host string) found {
	var all []netip.Addr
	var ports []Endpoint
	for _, e := range s.Endpoints {
		if strings.EqualFold(e.host(), host) {
			all = append(all, e.Address)
			ports = append(ports, e)
		}
	}
	if len(all) == 0 {
		return nothing
	}
	if q.Qtype == dns.TypeSRV {
		f := a.targets(q, &Service{Key: s.Key, Endpoints: ports}, func(Port) bool { return true })
		f.exists = true
		return f
	}
	return found{exists: true, records: addresses(q.Name, q.Qtype, all)}
}

// pod answers <a-b-c-d>.<namespace>.pod, whoever has that address.
func (a *answerer) pod(q dns.Question, labels []string) found {
	if len(labels) < 2 {
		return empty
	}
	address, ok := undash(labels[0])
	if len(labels) > 2 || !ok {
		return nothing
	}
	return found{exists: true, records: addresses(q.Name, q.Qtype, []netip.Addr{address})}
}

// names are what a PTR question about an address is answered; none: it is not the
// cluster's.
func (a *answerer) names(q dns.Question) []dns.RR {
	address, ok := addressOf(strings.ToLower(q.Name))
	if !ok {
		return nil
	}
	a.view.mu.RLock()
	defer a.view.mu.RUnlock()
	var records []dns.RR
	for _, p := range a.view.reverse[address] {
		name := p.Name + "." + p.Namespace + ".svc." + a.zone
		if p.host != "" {
			name = p.host + "." + name
		}
		records = append(records, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: name})
	}
	return records
}

// addressOf is the address that a name of in-addr.arpa or ip6.arpa stands for.
func addressOf(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		parts := strings.Split(rest, ".")
		slices.Reverse(parts)
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil && len(parts) == 4
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	nibbles := strings.Split(rest, ".")
	if !ok || len(nibbles) != 32 {
		return netip.Addr{}, false
	}
	slices.Reverse(nibbles)
	var text strings.Builder
	for i, n := range nibbles {
		if i > 0 && i%4 == 0 {
			text.WriteByte(':')
		}
		text.WriteString(n)
	}
	a, err := netip.ParseAddr(text.String())
	return a, err == nil
}

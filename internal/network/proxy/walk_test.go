package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"mend/internal/network/catalog"
)

// walker walks packets through the table as a value, as the kernel would.
type walker struct {
	c      Config
	family Family
	chains map[string]Chain
	bases  []Chain
	held   map[string]map[string]string // set → key → value
	ranges map[string][]Element
	memory map[string]string // what packets wrote
	// choose picks one of n endpoints.
	choose func(n int) int
}

func newWalker(c Config, family Family, services map[catalog.Key]Rendering) *walker {
	l := newLedger()
	l.change(services)
	w := &walker{c: c, family: family, chains: map[string]Chain{}, held: map[string]map[string]string{},
		ranges: map[string][]Element{}, memory: map[string]string{}, choose: func(int) int { return 0 }}
	chains := fixed(c, family)
	for _, k := range l.classesOf(family) {
		chains = append(chains, k.chain(c, family))
	}
	for _, chain := range chains {
		w.chains[chain.Name] = chain
		if chain.Hook != "" {
			w.bases = append(w.bases, chain)
		}
	}
	slices.SortStableFunc(w.bases, func(a, b Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, e := range l.all() {
		if e.Family != family {
			continue
		}
		if e.End != "" {
			w.ranges[e.Set] = append(w.ranges[e.Set], e)
			continue
		}
		if w.held[e.Set] == nil {
			w.held[e.Set] = map[string]string{}
		}
		w.held[e.Set][e.Key] = e.Value
	}
	return w
}

// packet is the first one of a connection.
type packet struct {
	from, to netip.AddrPort
	protocol Protocol
	// own says that this node sends it.
	own bool

	marked, translated, masqueraded bool
}

// verdict is what a chain says; the empty one goes on.
type verdict string

const (
	goesOn   verdict = ""
	accepted verdict = "accept"
	dropped  verdict = "drop"
	rejected verdict = "reject"
	fails    verdict = "no match" // of one part
)

// send sends a packet and says what became of it.
func (w *walker) send(p packet) string {
	if v := w.walk(&p); v != goesOn {
		return string(v)
	}
	out := p.to.String()
	if p.masqueraded {
		out += " masqueraded"
	}
	return out
}

// walk takes the packet through the hooks.
func (w *walker) walk(p *packet) verdict {
	hooks := []string{hookPrerouting}
	if p.own {
		hooks = []string{hookOutput}
	}
	for i := 0; i < len(hooks); i++ {
		for _, base := range w.bases {
			if base.Hook != hooks[i] {
				continue
			}
			if v := w.chain(base, p); v == dropped || v == rejected {
				return v
			}
		}
		if hooks[i] == hookPostrouting {
			continue
		}
		if !w.isHere(p.to.Addr()) {
			hooks = append(hooks, hookPostrouting)
		} else if hooks[i] == hookOutput {
			hooks = append(hooks, hookPostrouting, hookPrerouting) // by the loopback
		}
	}
	return goesOn
}

func (w *walker) isHere(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(w.c.NodeAddrs, a) || slices.ContainsFunc(w.c.PodRanges, func(p netip.Prefix) bool {
		return p.Masked().Addr().Next() == a // the bridge
	})
}

func (w *walker) chain(c Chain, p *packet) verdict {
	for _, rule := range c.Rules {
		if v, done := w.rule(rule, p); done {
			return v
		}
	}
	return goesOn
}

// rule returns true when the chain ends with this rule.
func (w *walker) rule(rule Rule, p *packet) (verdict, bool) {
	for _, part := range rule {
		switch part := part.(type) {
		case Jump:
			if v := w.chain(w.chains[part.Chain], p); v != goesOn {
				return v, true
			}
		case Dispatch:
			value, ok := w.held[part.Map][w.key(schemaOf(part.Map).key, p)]
			if !ok {
				return goesOn, false
			}
			class := unpackClass([]byte(value))
			chain, ok := w.chains[class.Name()]
			if !ok {
				panic("no chain " + class.Name())
			}
			if v := w.chain(chain, p); v != goesOn {
				return v, true
			}
		default:
			switch v := w.part(part, p); v {
			case fails:
				return goesOn, false
			case goesOn:
			default:
				return v, true
			}
		}
	}
	return goesOn, false
}

func matched(ok bool) verdict {
	if ok {
		return goesOn
	}
	return fails
}

func (w *walker) part(part Part, p *packet) verdict {
	switch part := part.(type) {
	case NewConnection:
		return goesOn
	case Translated:
		return matched(p.translated)
	case From:
		return matched(part.Range.Contains(p.from.Addr()) != part.Not)
	case To:
		return matched(part.Range.Contains(p.to.Addr()) != part.Not)
	case FromHere:
		return matched(w.isHere(p.from.Addr()))
	case ToHere:
		return matched(w.isHere(p.to.Addr()))
	case Found:
		return matched(w.has(part.Set, p))
	case NotFound:
		return matched(!w.has(part.Set, p))
	case Marked:
		return matched(p.marked)
	case OfTCP:
		return matched(p.protocol == TCP)
	case Redirection, Refusal:
		return fails
	default:
		return w.statement(part, p)
	}
}

func (w *walker) statement(part Part, p *packet) verdict {
	switch part := part.(type) {
	case Mark:
		p.marked = true
	case Unmark:
		p.marked = false
	case Masquerade:
		p.masqueraded = true
		return accepted
	case Drop:
		return dropped
	case Reject, Reset:
		return rejected
	case Balance:
		return w.balance(part, p)
	case Recall:
		return w.recall(part, p)
	case Forget:
		delete(w.memory, w.memoryKey(part.NodePort, p))
	default:
		panic(fmt.Sprintf("unknown part %T", part))
	}
	return goesOn
}

// key is what the packet has for the fields of a key.
func (w *walker) key(fields []field, p *packet) string {
	key := ""
	for _, f := range fields {
		switch f {
		case source:
			key += packAddr(p.from.Addr())
		case destination:
			key += packAddr(p.to.Addr())
		case protocol:
			key += packProtocol(p.protocol)
		case port:
			key += packPort(p.to.Port())
		case sourcePort:
			key += packPort(p.from.Port())
		case index, target, targetPort, class:
		}
	}
	return key
}

func (w *walker) has(set string, p *packet) bool {
	key := w.key(schemaOf(set).key, p)
	if _, ok := w.held[set][key]; ok {
		return true
	}
	return slices.ContainsFunc(w.ranges[set], func(e Element) bool {
		n := source.width(w.family)
		rest := len(key) - n
		return key[:rest] == e.Key[:rest] && key[rest:] >= e.Key[rest:] && key[rest:] <= e.End[rest:]
	})
}

func (w *walker) memoryKey(nodePort bool, p *packet) string {
	set := pick(nodePort, setAffinity, setAffinityNodePorts)
	return set + w.key(schemaOf(set).key, p)
}

func (w *walker) balance(b Balance, p *packet) verdict {
	set := pick(b.NodePort, setEndpoints, setNodePortEndpoints)
	to, ok := w.held[set][w.key(schemaOf(set).key, p)+packIndex(b.From+w.choose(b.Count))]
	if !ok {
		panic("an index leads nowhere")
	}
	if b.Remember > 0 {
		key := w.memoryKey(b.NodePort, p)
		if _, there := w.memory[key]; !there { // an update does not change a value
			w.memory[key] = to
		}
	}
	return w.translate(p, to)
}

func (w *walker) recall(r Recall, p *packet) verdict {
	to, ok := w.memory[w.memoryKey(r.NodePort, p)]
	if !ok {
		return fails
	}
	set := pick(r.NodePort, setSticky, setStickyNodePorts)
	if _, still := w.held[set][w.key(schemaOf(set).key, p)+to]; !still {
		return fails
	}
	return w.translate(p, to)
}

func (w *walker) translate(p *packet, to string) verdict {
	n := target.width(w.family)
	addr, _ := netip.AddrFromSlice([]byte(to[:n]))
	p.to = netip.AddrPortFrom(addr, uint16(to[n])<<8|uint16(to[n+1]))
	p.translated = true
	return accepted
}

// Where packets come from in the tests.
var (
	podHere  = netip.MustParseAddr("10.42.0.2")
	podOther = netip.MustParseAddr("10.42.0.9")
	outside  = netip.MustParseAddr("198.51.100.7")
	itself   = netip.MustParseAddr("198.18.0.1")
)

func from(a netip.Addr, to string) packet {
	p := packet{from: netip.AddrPortFrom(a, 40000), to: netip.MustParseAddrPort(to), protocol: TCP}
	p.own = a == itself || a.IsLoopback() || a.String() == "2001:db8::1"
	return p
}

func named(name string) catalog.Service {
	for _, tt := range cases {
		if tt.name == name {
			return tt.service
		}
	}
	panic("no case " + name)
}

// journeys are where packets of the golden cases go, with every choice of an endpoint.
var journeys = []struct {
	name    string
	service string
	packet  packet
	want    []string
}{
	{"from a Pod", "cluster-ip", from(podOther, "10.43.0.10:80"), []string{"10.42.0.2:8080", "10.42.1.2:8080"}},
	{"from the endpoint itself", "cluster-ip", from(podHere, "10.43.0.10:80"), []string{"10.42.0.2:8080 masqueraded", "10.42.1.2:8080"}},
	{"from the node", "cluster-ip", from(itself, "10.43.0.10:80"), []string{"10.42.0.2:8080 masqueraded", "10.42.1.2:8080 masqueraded"}},
	{"from outside by a route", "cluster-ip", from(outside, "10.43.0.10:80"), []string{"10.42.0.2:8080 masqueraded", "10.42.1.2:8080 masqueraded"}},
	{"to a wrong port", "cluster-ip", from(podOther, "10.43.0.10:81"), []string{"reject"}},
	{"to an address nobody has", "cluster-ip", from(podOther, "10.43.0.99:80"), []string{"drop"}},
	{"to something else", "cluster-ip", from(podOther, "8.8.8.8:80"), []string{"8.8.8.8:80"}},
	{"straight to a Pod", "cluster-ip", from(podOther, "10.42.1.3:8080"), []string{"10.42.1.3:8080"}},

	{"without endpoints, from a Pod", "no-endpoints", from(podOther, "10.43.0.10:80"), []string{"reject"}},
	{"without endpoints, from the node", "no-endpoints", from(itself, "10.43.0.10:80"), []string{"reject"}},
	{"without endpoints, external address", "no-endpoints", from(outside, "203.0.113.1:80"), []string{"reject"}},
	{"without endpoints, node port", "no-endpoints", from(outside, "198.18.0.1:30080"), []string{"reject"}},
	{"without endpoints, node port from here", "no-endpoints", from(itself, "198.18.0.1:30080"), []string{"reject"}},

	{"endings serve when nobody else does", "only-ending-endpoints", from(podOther, "10.43.0.10:80"), []string{"10.42.0.2:8080", "10.42.1.2:8080"}},
	{"internal Local", "internal-local", from(podOther, "10.43.0.10:80"), []string{"10.42.0.2:8080"}},
	{"internal Local, none here", "internal-local-elsewhere", from(podOther, "10.43.0.10:80"), []string{"drop"}},

	{"node port from outside", "node-port", from(outside, "198.18.0.1:30080"), []string{"10.42.0.2:8080 masqueraded", "10.42.1.2:8080 masqueraded"}},
	{"node port from a Pod", "node-port", from(podOther, "198.18.0.1:30080"), []string{"10.42.0.2:8080 masqueraded", "10.42.1.2:8080 masqueraded"}},
	{"node port on the loopback", "node-port", from(netip.MustParseAddr("127.0.0.1"), "127.0.0.1:30080"), []string{"10.42.0.2:8080 masqueraded", "10.42.1.2:8080 masqueraded"}},
	{"another node's node port", "node-port", from(podOther, "198.18.0.2:30080"), []string{"198.18.0.2:30080"}},
	{"node port's number at a ClusterIP", "node-port", from(podOther, "10.43.0.10:30080"), []string{"reject"}},

	{"external Local from outside keeps the source", "external-local", from(outside, "198.18.0.1:30080"), []string{"10.42.0.2:8080"}},
	{"external Local at an address", "external-local", from(outside, "203.0.113.1:80"), []string{"10.42.0.2:8080"}},
	{"external Local from a Pod reaches all", "external-local", from(podOther, "203.0.113.1:80"), []string{"10.42.0.2:8080", "10.42.1.2:8080"}},
	{"external Local from the node reaches all", "external-local", from(itself, "203.0.113.1:80"), []string{"10.42.0.2:8080 masqueraded", "10.42.1.2:8080 masqueraded"}},
	{"external Local, none here", "external-local-elsewhere", from(outside, "198.18.0.1:30080"), []string{"drop"}},
	{"external Local, none here, from a Pod", "external-local-elsewhere", from(podOther, "198.18.0.1:30080"), []string{"10.42.1.2:8080"}},

	{"allowed source", "load-balancer", from(outside, "198.18.0.1:80"), []string{"10.42.0.2:8080"}},
	{"source that is not allowed", "load-balancer", from(netip.MustParseAddr("198.51.101.1"), "198.18.0.1:80"), []string{"drop"}},
	{"Pods are no allowed source", "load-balancer", from(podOther, "198.18.0.1:80"), []string{"drop"}},
	{"source ranges do not guard node ports", "load-balancer", from(netip.MustParseAddr("198.51.101.1"), "198.18.0.1:30080"), []string{"10.42.0.2:8080"}},
	{"all sources", "load-balancer-for-all", from(outside, "198.18.0.1:80"), []string{"10.42.0.2:8080 masqueraded"}},
	{"a proxying balancer's address", "load-balancer-for-all", from(outside, "198.18.0.9:80"), []string{"198.18.0.9:80"}},

	{"IPv6", "dual-stack", from(netip.MustParseAddr("fd42::9"), "[fd43::a]:80"), []string{"[fd42::2]:8080", "[fd42:0:0:1::2]:8080"}},
	{"IPv6 hairpin", "dual-stack", from(netip.MustParseAddr("fd42::2"), "[fd43::a]:80"), []string{"[fd42::2]:8080 masqueraded", "[fd42:0:0:1::2]:8080"}},
	{"IPv6 node port", "dual-stack", from(netip.MustParseAddr("2001:db8::77"), "[2001:db8::1]:30080"), []string{"[fd42::2]:8080 masqueraded", "[fd42:0:0:1::2]:8080 masqueraded"}},
	{"IPv6 node port on the loopback", "dual-stack", from(netip.MustParseAddr("::1"), "[::1]:30080"), []string{"[::1]:30080"}},
	{"second port", "several-ports", packet{from: netip.AddrPortFrom(podOther, 1), to: netip.MustParseAddrPort("10.43.0.10:53"), protocol: UDP}, []string{"10.42.0.2:1053", "10.42.0.3:1053"}},
	{"port whose name no Pod has", "several-ports", from(podOther, "10.43.0.10:53"), []string{"reject"}},
}

func TestPacketsGoWhereTheyShould(t *testing.T) {
	for _, tt := range journeys {
		t.Run(tt.name, func(t *testing.T) {
			w := newWalker(here, familyOf(tt.packet.to.Addr()), map[catalog.Key]Rendering{{Namespace: "ns", Name: "web"}: render(here, named(tt.service))})
			got := []string{w.send(tt.packet)}
			for i, n := 1, len(tt.want); i < n; i++ {
				w.choose = func(most int) int {
					if most != n {
						t.Errorf("chooses among %d, want %d", most, n)
					}
					return i
				}
				got = append(got, w.send(tt.packet))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("went to %v, want %v", got, tt.want)
			}
		})
	}
}

// A client comes back to its endpoint until that is none of the Service's any more, and
// then stays with the next.
func TestStickyClients(t *testing.T) {
	for _, to := range []string{"10.43.0.10:80", "198.18.0.1:30080"} {
		key := catalog.Key{Namespace: "ns", Name: "web"}
		s := named("sticky")
		w := newWalker(here, IPv4, map[catalog.Key]Rendering{key: render(here, s)})
		w.choose = func(int) int { return 1 }
		first := w.send(from(outside, to))
		w.choose = func(int) int { return 0 }
		if again := w.send(from(outside, to)); again != first {
			t.Errorf("%s: first %s, then %s", to, first, again)
		}
		if other := w.send(from(netip.MustParseAddr("198.51.100.8"), to)); other == first {
			t.Errorf("%s: another client went to %s too", to, other)
		}
		next := newWalker(here, IPv4, map[catalog.Key]Rendering{key: render(here, catalog.Service{Object: s.Object,
			Slices: []*discovery.EndpointSlice{slice(v1.ProtocolTCP, "10.42.0.2@here", "10.42.1.9@there")}})})
		next.memory, next.choose = w.memory, func(int) int { return 1 }
		moved := next.send(from(outside, to))
		if moved != "10.42.1.9:8080 masqueraded" {
			t.Errorf("%s: went to %s after the endpoint had gone", to, moved)
		}
		next.choose = func(int) int { return 0 }
		if again := next.send(from(outside, to)); again != moved {
			t.Errorf("%s: moved to %s, then to %s", to, moved, again)
		}
	}
}

package proxy

import (
	"fmt"
	"net/netip"
	"strings"
)

// Family is an IP family; each has a table of its own.
type Family uint8

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

var loopback6 = netip.MustParsePrefix("::1/128")

// familyOf is the family of an address.
func familyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

func ofFamily(all []netip.Prefix, family Family) []netip.Prefix {
	var of []netip.Prefix
	for _, p := range all {
		if familyOf(p.Addr()) == family {
			of = append(of, p)
		}
	}
	return of
}

// Chain is a chain of the table. One without a hook is only jumped to.
type Chain struct {
	Name     string
	Hook     string
	Priority int
	NAT      bool
	Rules    []Rule
}

// Rule is a rule: its parts apply one after another, until one does not match.
type Rule []Part

// Part is one match or statement of a rule, out of the closed set below.
type Part interface {
	// text is the part in nft's own words, as far as it has any.
	text(Family) string
}

// Matches.
type (
	// NewConnection matches a connection's first packet.
	NewConnection struct{}
	// Translated matches connections whose destination was rewritten.
	Translated struct{}
	// From matches by source.
	From struct {
		Range netip.Prefix
		Not   bool
	}
	// To matches by destination.
	To struct {
		Range netip.Prefix
		Not   bool
	}
	// FromHere matches a source that is one of this node's addresses.
	FromHere struct{}
	// ToHere matches a destination that is one of this node's addresses.
	ToHere struct{}
	// Found matches packets whose key is in a set.
	Found struct{ Set string }
	// NotFound matches packets whose key is not in a set.
	NotFound struct{ Set string }
	// Marked matches packets that [Mark] marked.
	Marked struct{}
	// OfTCP matches TCP.
	OfTCP struct{}
	// Refusal matches the answer to the first packet of a TCP connection that nobody
	// listens for.
	Refusal struct{}
	// Redirection matches an ICMP redirect that leaves by an interface.
	Redirection struct{ Interface string }
)

// Statements.
type (
	// Jump goes on in a chain and comes back.
	Jump struct{ Chain string }
	// Dispatch goes on in the chain of the class that a map has for the packet, and comes
	// back; it matches nothing when the map has none.
	Dispatch struct{ Map string }
	// Mark marks the packet for masquerading.
	Mark struct{}
	// Unmark takes the mark away.
	Unmark struct{}
	// Masquerade gives the packet an address of this node as its source.
	Masquerade struct{}
	// Drop ends the packet.
	Drop struct{}
	// Reject ends the packet and tells its sender.
	Reject struct{}
	// Reset ends a TCP connection.
	Reset struct{}
	// Balance sends the connection to one of Count endpoints, chosen at random. Their
	// indices begin at From. Remember is for how many seconds the client comes back to
	// the same one; 0: not.
	Balance struct {
		NodePort    bool
		Count, From int
		Remember    int
	}
	// Recall sends the connection to the remembered endpoint, if there is one and it is
	// still one of the Service's.
	Recall struct {
		NodePort bool
		Remember int
	}
	// Forget drops what is remembered of the client.
	Forget struct{ NodePort bool }
)

func (f Family) header() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}

// words names a key as nft does.
func words(fields []field, f Family) string {
	names := map[field]string{
		source: f.header() + " saddr", destination: f.header() + " daddr", protocol: "meta l4proto", port: "th dport", sourcePort: "th sport",
		target: "<address>", targetPort: "<port>", index: "<index>",
	}
	var parts []string
	for _, field := range fields {
		parts = append(parts, names[field])
	}
	return strings.Join(parts, " . ")
}

func unless(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

func (NewConnection) text(Family) string { return "ct state new" }
func (Translated) text(Family) string    { return "ct status dnat" }
func (p From) text(f Family) string {
	return fmt.Sprintf("%s saddr %s%s", f.header(), unless(p.Not), p.Range)
}
func (p To) text(f Family) string {
	return fmt.Sprintf("%s daddr %s%s", f.header(), unless(p.Not), p.Range)
}
func (FromHere) text(Family) string { return "fib saddr type local" }
func (ToHere) text(Family) string   { return "fib daddr type local" }
func (p Found) text(f Family) string {
	return words(schemaOf(p.Set).key, f) + " @" + p.Set
}
func (p NotFound) text(f Family) string {
	return words(schemaOf(p.Set).key, f) + " != @" + p.Set
}
func (Marked) text(Family) string { return "meta mark & <mark> != 0" }
func (p Jump) text(Family) string { return "jump " + p.Chain }
func (p Dispatch) text(f Family) string {
	return words(schemaOf(p.Map).key, f) + " map @" + p.Map + " vmap @" + setClasses
}
func (Mark) text(Family) string       { return "meta mark set meta mark | <mark>" }
func (Unmark) text(Family) string     { return "meta mark set meta mark ^ <mark>" }
func (Masquerade) text(Family) string { return "masquerade fully-random" }
func (Drop) text(Family) string       { return "drop" }
func (Reject) text(Family) string     { return "reject" }
func (Reset) text(Family) string      { return "reject with tcp reset" }
func (OfTCP) text(Family) string      { return "meta l4proto tcp" }
func (Refusal) text(Family) string    { return "tcp flags == rst | ack tcp sequence 0" }
func (p Redirection) text(f Family) string {
	return map[Family]string{IPv4: "icmp type redirect", IPv6: "icmpv6 type nd-redirect"}[f] + " oifname " + p.Interface
}

func (p Balance) text(f Family) string {
	endpoints, affinity := setEndpoints, setAffinity
	if p.NodePort {
		endpoints, affinity = setNodePortEndpoints, setAffinityNodePorts
	}
	choice := fmt.Sprintf("numgen random mod %d", p.Count)
	if p.From > 0 {
		choice += fmt.Sprintf(" offset %d", p.From)
	}
	key := strings.Replace(words(schemaOf(endpoints).key, f), "<index>", choice, 1)
	out := fmt.Sprintf("dnat to %s map @%s", key, endpoints)
	if p.Remember > 0 {
		out += fmt.Sprintf(" update @%s { %s timeout %ds : <target> }", affinity, words(schemaOf(affinity).key, f), p.Remember)
	}
	return out
}

func (p Recall) text(f Family) string {
	sticky, affinity := setSticky, setAffinity
	if p.NodePort {
		sticky, affinity = setStickyNodePorts, setAffinityNodePorts
	}
	key := words(schemaOf(affinity).key, f)
	return fmt.Sprintf("dnat to %s map @%s if in @%s update @%s { %s timeout %ds : <target> }",
		key, affinity, sticky, affinity, key, p.Remember)
}

func (p Forget) text(f Family) string {
	affinity := setAffinity
	if p.NodePort {
		affinity = setAffinityNodePorts
	}
	return fmt.Sprintf("delete @%s { %s }", affinity, words(schemaOf(affinity).key, f))
}

// String prints the rule in nft's words.
func (r Rule) string(f Family) string {
	var parts []string
	for _, p := range r {
		parts = append(parts, p.text(f))
	}
	return strings.Join(parts, " ")
}

// string prints the chain in nft's words.
func (c Chain) string(f Family) string {
	var out strings.Builder
	fmt.Fprintf(&out, "chain %s {\n", c.Name)
	if c.Hook != "" {
		kind := "filter"
		if c.NAT {
			kind = "nat"
		}
		fmt.Fprintf(&out, "  type %s hook %s priority %d\n", kind, c.Hook, c.Priority)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(&out, "  %s\n", r.string(f))
	}
	out.WriteString("}\n")
	return out.String()
}

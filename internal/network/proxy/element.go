package proxy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Element is one element of a set or map, as the kernel has it: each part of Key, End
// and Value in network order, padded to four bytes.
type Element struct {
	Family Family
	Set    string
	Key    string
	// End is the last key of a range; empty for a single key.
	End   string
	Value string
}

// schemasByName finds the schema of a set.
var schemasByName = func() map[string]schema {
	all := map[string]schema{}
	for _, s := range schemas {
		all[s.name] = s
	}
	return all
}()

func schemaOf(set string) schema {
	s, ok := schemasByName[set]
	if !ok {
		panic("no such set: " + set)
	}
	return s
}

// width is the size of a field in a key, in bytes.
func (f field) width(family Family) int {
	switch f {
	case source, destination, target:
		if family == IPv6 {
			return 16
		}
		return 4
	case class:
		return 8
	case protocol, port, sourcePort, index, targetPort:
		return 4
	}
	panic("unknown field")
}

func widths(fields []field, family Family) int {
	n := 0
	for _, f := range fields {
		n += f.width(family)
	}
	return n
}

// parts are the values that keys and values are made of.
func packAddr(a netip.Addr) string   { return string(a.AsSlice()) }
func packProtocol(p Protocol) string { return string([]byte{byte(p), 0, 0, 0}) }
func packPort(n uint16) string       { return string(binary.BigEndian.AppendUint16(nil, n)) + "\x00\x00" }
func packClass(k Class) string       { return k.pack() }

// packIndex is in the host's order: the kernel writes it there as a number.
func packIndex(n int) string { return string(binary.NativeEndian.AppendUint32(nil, uint32(n))) }

// String prints the element as nft does.
func (e Element) String() string {
	s := schemaOf(e.Set)
	key := unpack(s.key, e.Key, e.Family)
	if e.End != "" {
		last := len(s.key) - 1
		end := unpack(s.key, e.End, e.Family)
		key[last] += "-" + end[last]
	}
	out := fmt.Sprintf("%s %s { %s", e.Family.header(), e.Set, strings.Join(key, " . "))
	if len(s.value) > 0 {
		out += " : " + strings.Join(unpack(s.value, e.Value, e.Family), " . ")
	}
	return out + " }"
}

func unpack(fields []field, packed string, family Family) []string {
	var out []string
	for _, f := range fields {
		n := f.width(family)
		if len(packed) < n {
			return append(out, "?")
		}
		out = append(out, f.print([]byte(packed[:n])))
		packed = packed[n:]
	}
	return out
}

func (f field) print(b []byte) string {
	switch f {
	case source, destination, target:
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case protocol:
		return Protocol(b[0]).String()
	case port, sourcePort, targetPort:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case index:
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	case class:
		return unpackClass(b).Name()
	}
	panic("unknown field")
}

// Protocol is a layer 4 protocol's number.
type Protocol uint8

// The protocols of Services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprint(uint8(p))
}

// Kind is how a class treats its clients.
type Kind uint8

// The kinds.
const (
	// Internal is for ClusterIPs.
	Internal Kind = iota + 1
	// External is for node ports, external and load balancer addresses.
	External
	// ExternalLocal is External with externalTrafficPolicy Local.
	ExternalLocal
)

// Class is everything that decides how a connection to a Service's port finds its
// endpoint, but for the endpoints themselves. Services alike share a class.
type Class struct {
	NodePort bool
	Kind     Kind
	// Cluster and Local are how many endpoints there are to choose from: for Internal and
	// External Cluster alone.
	Cluster, Local int
	// Sticky is for how many seconds a client comes back to its endpoint; 0: not.
	Sticky int
}

const (
	// mostEndpoints is how many endpoints of one port are used: a class has 14 bits for
	// the count.
	mostEndpoints = 1<<14 - 1
	// localFrom is the first index of the node's own endpoints, behind all others.
	localFrom = 1 << 16
)

// Name is the name of the class's chain.
func (k Class) Name() string {
	name := map[Kind]string{Internal: "internal", External: "external", ExternalLocal: "local"}[k.Kind]
	if k.NodePort {
		name = "node-port-" + name
	}
	name += fmt.Sprintf("-%d", k.Cluster)
	if k.Kind == ExternalLocal {
		name += fmt.Sprintf("-%d", k.Local)
	}
	if k.Sticky > 0 {
		name += fmt.Sprintf("-sticky-%d", k.Sticky)
	}
	return name
}

// pack numbers the class: kind, both counts; then the seconds and whether it is a node
// port.
func (k Class) pack() string {
	var b [8]byte
	binary.BigEndian.PutUint32(b[:4], uint32(k.Kind)<<28|uint32(k.Cluster)<<14|uint32(k.Local))
	low := uint32(k.Sticky) << 1
	if k.NodePort {
		low |= 1
	}
	binary.BigEndian.PutUint32(b[4:], low)
	return string(b[:])
}

func unpackClass(b []byte) Class {
	high, low := binary.BigEndian.Uint32(b[:4]), binary.BigEndian.Uint32(b[4:8])
	return Class{
		Kind: Kind(high >> 28), Cluster: int(high >> 14 & mostEndpoints), Local: int(high & mostEndpoints),
		Sticky: int(low >> 1), NodePort: low&1 != 0,
	}
}

// Rendering is all that one Service has in the kernel and beside it.
type Rendering struct {
	// Elements are sorted.
	Elements []Element
	// UDP are its ports whose connections the kernel must forget when an endpoint goes.
	UDP []UDPPort
	// Health is what its health check port says; nil: it has none.
	Health *Health
}

// UDPPort is where a UDP port of a Service is reached, and who may answer there.
type UDPPort struct {
	// Addr is invalid for a node port.
	Addr    netip.Addr
	Port    uint16
	Serving []netip.AddrPort // sorted
}

// Health is what a Service's health check port answers.
type Health struct {
	Port uint16
	// LocalEndpoints is how many ready endpoints this node has.
	LocalEndpoints int
}

// String prints the rendering, one element a line.
func (r Rendering) String() string {
	var out strings.Builder
	for _, e := range r.Elements {
		fmt.Fprintln(&out, e)
	}
	for _, u := range r.UDP {
		fmt.Fprintf(&out, "udp %s:%d may be answered by %v\n", u.where(), u.Port, u.Serving)
	}
	if r.Health != nil {
		fmt.Fprintf(&out, "health check port %d: %d local endpoints\n", r.Health.Port, r.Health.LocalEndpoints)
	}
	return out.String()
}

func (u UDPPort) where() string {
	if !u.Addr.IsValid() {
		return "*"
	}
	return u.Addr.String()
}

// compareElements is a total order, by place first.
func compareElements(a, b Element) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key),
		cmp.Compare(a.End, b.End), cmp.Compare(a.Value, b.Value))
}

// sortElements sorts, and leaves one element for each place.
func sortElements(all []Element) []Element {
	slices.SortFunc(all, compareElements)
	return slices.CompactFunc(all, func(a, b Element) bool { return a.slot() == b.slot() })
}

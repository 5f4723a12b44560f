package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"mend/internal/network/hostport"
)

// applyRules puts the instance's table into the kernel, in one transaction:
//
//	table ip mend-<id> {
//	  map hostports-any  { proto . port : address . port }         (package hostport)
//	  map hostports-addr { address . proto . port : address . port }
//	  set hostports-hairpin { address . address }                  (Pods that reach themselves)
//	  chain guard       { hook prerouting, raw:  Pods do not reach the host's 127.0.0.0/8 }
//	  chain prerouting  { hook prerouting, dstnat: to a local address → hostports }
//	  chain output      { hook output, dstnat:     to a local address → hostports }
//	  chain hostports   { dnat through the two maps }
//	  chain postrouting { hook postrouting, srcnat: masquerade }
//	}
//
// Chains are flushed and filled again, so that a newer mend's rules replace an older
// one's; the maps keep their elements.
func applyRules(table string, n *Network) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t := c.AddTable(hostport.Table(table))
	byAny, byAddr := hostport.Maps(t)
	hairpins := hostport.Hairpin(t)
	for _, m := range []*nftables.Set{byAny, byAddr, hairpins} {
		if err := c.AddSet(m, nil); err != nil {
			return fmt.Errorf("nftables map %s: %w", m.Name, err)
		}
	}
	hook := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		ch := c.AddChain(&nftables.Chain{Name: name, Table: t, Type: kind, Hooknum: hook, Priority: prio})
		c.FlushChain(ch)
		return ch
	}
	guard := hook("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	pre := hook("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := hook("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	post := hook("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	ports := c.AddChain(&nftables.Chain{Name: "hostports", Table: t})
	c.FlushChain(ports)

	add := func(ch *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: join(parts...)})
	}
	pods := n.PodCIDR

	add(guard, fromInterface(n.Bridge), matchRange(destination, loopbackRange, true), verdict(expr.VerdictDrop, ""))
	for _, ch := range []*nftables.Chain{pre, out} {
		add(ch, toLocalAddress(), verdict(expr.VerdictJump, ports.Name))
	}
	add(ports, loadDestination(1), loadProtocol(9), loadPort(10), dnatThrough(byAddr))
	add(ports, loadProtocol(1), loadPort(9), dnatThrough(byAny))

	// From 127.0.0.1 through a host port: the Pod could not answer such a source.
	add(post, matchRange(source, loopbackRange, true), toInterface(n.Bridge, true), masquerade())
	// A Pod to itself through a host port: it would not take a packet from its own address.
	// Pods reach each other through the node, so other answers come back here anyway, and
	// the proxy of Services masquerades what it must.
	add(post, toInterface(n.Bridge, true), translated(), bothIn(hairpins), masquerade())
	add(post, matchRange(source, pods, true), matchRange(destination, pods, false), toInterface(n.Bridge, false), masquerade())
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set the nftables table %s (does the kernel have nf_tables and nf_nat?): %w", table, err)
	}
	return nil
}

// removeRules deletes the instance's table.
func removeRules(table string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(hostport.Table(table))
	if err := c.Flush(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("delete the nftables table %s: %w", table, err)
	}
	return nil
}

func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// Offsets of the addresses in an IPv4 header.
const (
	source      = 12
	destination = 16
)

func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func fromInterface(name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(name)},
	}
}

func toInterface(name string, equal bool) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: compare(equal), Register: 1, Data: interfaceName(name)},
	}
}

func compare(equal bool) expr.CmpOp {
	if equal {
		return expr.CmpOpEq
	}
	return expr.CmpOpNeq
}

// loopbackRange is the host's own.
var loopbackRange = netip.MustParsePrefix("127.0.0.0/8")

// matchRange matches an address of the header that lies in a range, or does not.
func matchRange(offset uint32, r netip.Prefix, equal bool) []expr.Any {
	n := toIPNet(r.Masked())
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: n.Mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: compare(equal), Register: 1, Data: n.IP},
	}
}

// toLocalAddress matches what is addressed to this host.
func toLocalAddress() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

func loadDestination(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4}}
}

func loadProtocol(reg uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}}
}

// loadPort loads the destination port, which TCP, UDP and SCTP have in one place.
func loadPort(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

// dnatThrough looks the key up that starts in register 1; the value's address lands in
// register 1 and its port in the next four bytes, register 9.
func dnatThrough(m *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 9, Specified: true},
	}
}

// translated matches connections whose destination was rewritten.
func translated() []expr.Any {
	const ipsDstNAT = 1 << 5 // IPS_DST_NAT
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(ipsDstNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// bothIn matches a packet whose source and destination are a pair of the set.
func bothIn(set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: 8},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
	}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

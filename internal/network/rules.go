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

// applyRules puts the instance's tables into the kernel, in one transaction, and takes that
// of IPv6 away when the network has no IPv6:
//
//	table ip|ip6 mend-<id> {
//	  map hostports-any  { proto . port : address . port }         (package hostport)
//	  map hostports-addr { address . proto . port : address . port }
//	  set hostports-hairpin { address . address }                  (Pods that reach themselves)
//	  chain guard       { hook prerouting, raw:  Pods do not reach the host's 127.0.0.0/8 } (ip)
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
	if err := addTable(c, family4, hostport.Table(table), n.Bridge, n.PodCIDR); err != nil {
		return err
	}
	if n.PodCIDR6.IsValid() {
		if err := addTable(c, family6, hostport.Table6(table), n.Bridge, n.PodCIDR6); err != nil {
			return err
		}
	} else if err := removeTable(hostport.Table6(table)); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		hint := "does the kernel have nf_tables and nf_nat?"
		if n.PodCIDR6.IsValid() {
			hint += " If it has them for IPv4 only, start with --ip-families=IPv4"
		}
		return fmt.Errorf("set the nftables table %s (%s): %w", table, hint, err)
	}
	return nil
}

// layout is where a family's header has the addresses, and how long they are.
type layout struct {
	source, destination, length uint32
	protocol                    byte // of nf_tables
}

var (
	family4 = layout{source: 12, destination: 16, length: 4, protocol: unix.NFPROTO_IPV4}
	family6 = layout{source: 8, destination: 24, length: 16, protocol: unix.NFPROTO_IPV6}
)

// behind is the register behind an address in register 1. Registers 8 to 11 are the four
// quarters of register 1, and so on.
func (f layout) behind() uint32 { return 8 + f.length/4 }

// addTable adds a family's table to the transaction.
func addTable(c *nftables.Conn, f layout, table *nftables.Table, bridge string, pods netip.Prefix) error {
	t := c.AddTable(table)
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
	pre := hook("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := hook("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	post := hook("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	ports := c.AddChain(&nftables.Chain{Name: "hostports", Table: t})
	c.FlushChain(ports)
	add := func(ch *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: join(parts...)})
	}

	toPorts := [][]expr.Any{toLocalAddress(), verdict(expr.VerdictJump, ports.Name)}
	if f == family4 {
		guard := hook("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
		add(guard, fromInterface(bridge), f.matchRange(f.destination, loopbackRange, true), verdict(expr.VerdictDrop, ""))
		// From 127.0.0.1 through a host port: the Pod could not answer such a source.
		add(post, f.matchRange(f.source, loopbackRange, true), toInterface(bridge, true), masquerade())
	} else {
		// What is sent to ::1 cannot leave by another interface: the kernel has no
		// route_localnet for IPv6. It stays with the host's own programs.
		toPorts = append([][]expr.Any{f.matchRange(f.destination, loopbackRange6, false)}, toPorts...)
	}
	add(pre, toPorts...)
	add(out, toPorts...)
	add(ports, f.loadDestination(), loadProtocol(f.behind()), loadPort(f.behind()+1), f.dnatThrough(byAddr))
	add(ports, loadProtocol(1), loadPort(9), f.dnatThrough(byAny))

	// A Pod to itself through a host port: it would not take a packet from its own address.
	// Pods reach each other through the node, so other answers come back here anyway, and
	// the proxy of Services masquerades what it must.
	add(post, toInterface(bridge, true), translated(), f.bothIn(hairpins), masquerade())
	add(post, f.matchRange(f.source, pods, true), f.matchRange(f.destination, pods, false), toInterface(bridge, false), masquerade())
	return nil
}

// removeRules deletes the instance's tables.
func removeRules(table string) error {
	return errors.Join(removeTable(hostport.Table(table)), removeTable(hostport.Table6(table)))
}

// removeTable deletes a table. One of a family that the kernel does not know is not there.
func removeTable(table *nftables.Table) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(table)
	err = c.Flush()
	for _, missing := range []error{os.ErrNotExist, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, missing) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("delete the nftables table %s: %w", table.Name, err)
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

// These are the host's own.
var (
	loopbackRange  = netip.MustParsePrefix("127.0.0.0/8")
	loopbackRange6 = netip.MustParsePrefix("::1/128")
)

// matchRange matches an address of the header that lies in a range, or does not.
func (f layout) matchRange(offset uint32, r netip.Prefix, equal bool) []expr.Any {
	n := toIPNet(r.Masked())
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.length, Mask: n.Mask, Xor: make([]byte, f.length)},
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

func (f layout) loadDestination() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.destination, Len: f.length}}
}

func loadProtocol(reg uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}}
}

// loadPort loads the destination port, which TCP, UDP and SCTP have in one place.
func loadPort(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

// dnatThrough looks the key up that starts in register 1; the value's address lands in
// register 1 and its port behind it.
func (f layout) dnatThrough(m *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.protocol), RegAddrMin: 1, RegProtoMin: f.behind(), Specified: true},
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
func (f layout) bothIn(set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: 2 * f.length},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
	}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

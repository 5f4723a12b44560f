package proxy

import (
	"fmt"
	"math/bits"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// encoder turns rules into the kernel's expressions.
type encoder struct {
	family Family
	mark   uint32
	sets   map[string]*nftables.Set
}

// reg is the nth four bytes of the sixteen that a rule has for values.
func reg(n int) uint32 {
	const firstOf32 = 8 // NFT_REG32_00
	return firstOf32 + uint32(n)
}

func (e encoder) rule(r Rule) []expr.Any {
	var out []expr.Any
	for _, p := range r {
		out = append(out, e.part(p)...)
	}
	return out
}

// part encodes one part of a rule.
func (e encoder) part(p Part) []expr.Any {
	switch p := p.(type) {
	case NewConnection:
		return append([]expr.Any{&expr.Ct{Register: reg(0), Key: expr.CtKeySTATE}}, hasBit(expr.CtStateBitNEW)...)
	case Translated:
		const ipsDstNAT = 1 << 5 // IPS_DST_NAT
		return append([]expr.Any{&expr.Ct{Register: reg(0), Key: expr.CtKeySTATUS}}, hasBit(ipsDstNAT)...)
	case Marked:
		return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)}}, hasBit(e.mark)...)
	case From:
		return e.inRange(source, p.Range, p.Not)
	case To:
		return e.inRange(destination, p.Range, p.Not)
	case OfTCP:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(0)}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{unix.IPPROTO_TCP}}}
	case Refusal:
		// Of RFC 9293's header; RST is 4, ACK is 16.
		const flags, rstAndAck, flagsAt, sequenceAt = 0x3f, 0x14, 13, 4
		return []expr.Any{
			&expr.Payload{DestRegister: reg(0), Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
			&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 1, Mask: []byte{flags}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{rstAndAck}},
			&expr.Payload{DestRegister: reg(0), Base: expr.PayloadBaseTransportHeader, Offset: sequenceAt, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: make([]byte, 4)},
		}
	case Redirection:
		return append(e.redirection(), leaves(p.Interface)...)
	case FromHere:
		return isLocal(&expr.Fib{Register: reg(0), FlagSADDR: true, ResultADDRTYPE: true})
	case ToHere:
		return isLocal(&expr.Fib{Register: reg(0), FlagDADDR: true, ResultADDRTYPE: true})
	case Found:
		return append(e.load(schemaOf(p.Set).key), e.lookup(p.Set, 0, false))
	case NotFound:
		return append(e.load(schemaOf(p.Set).key), e.lookup(p.Set, 0, true))
	default:
		return e.statement(p)
	}
}

// statement encodes what does not match but act.
func (e encoder) statement(p Part) []expr.Any {
	switch p := p.(type) {
	case Jump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: p.Chain}}
	case Dispatch:
		return append(e.load(schemaOf(p.Map).key), e.value(p.Map, 0, 0), e.verdict(0))
	case Mark:
		return e.setMark(e.mark, e.mark)
	case Unmark:
		return e.setMark(0, e.mark)
	case Masquerade:
		return []expr.Any{&expr.Masq{FullyRandom: true}}
	case Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case Reject:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: map[Family]uint8{IPv4: 3, IPv6: 4}[e.family]}} // port unreachable
	case Reset:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	case Balance:
		return e.balance(p)
	case Recall:
		return e.recall(p)
	case Forget:
		affinity := pick(p.NodePort, setAffinity, setAffinityNodePorts)
		// The kernel wants a value where there is nothing to do with one.
		return append(e.load(schemaOf(affinity).key), e.remember(affinity, opDelete, reg(0), 0))
	default:
		panic(fmt.Sprintf("unknown part %T", p))
	}
}

func pick(nodePort bool, byAddr, byNodePort string) string {
	if nodePort {
		return byNodePort
	}
	return byAddr
}

// hasBit matches a bit of the first register.
func hasBit(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bit), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, 4)},
	}
}

func isLocal(fib *expr.Fib) []expr.Any {
	return []expr.Any{fib, &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)}}
}

// redirection matches the ICMP message that tells of a shorter way.
func (e encoder) redirection() []expr.Any {
	proto, kind := byte(unix.IPPROTO_ICMP), byte(5)
	if e.family == IPv6 {
		proto, kind = unix.IPPROTO_ICMPV6, 137
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{proto}},
		&expr.Payload{DestRegister: reg(0), Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{kind}},
	}
}

// leaves matches what goes out by an interface.
func leaves(name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: padded},
	}
}

// setMark clears some bits of the packet's mark and flips others.
func (e encoder) setMark(set, clear uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^clear), Xor: binaryutil.NativeEndian.PutUint32(set)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0), SourceRegister: true},
	}
}

func (e encoder) inRange(of field, r netip.Prefix, not bool) []expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	out := []expr.Any{e.payload(of, 0)}
	width := of.width(e.family)
	if r.Bits() < width*8 {
		out = append(out, &expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: uint32(width),
			Mask: netmask(r.Bits(), width), Xor: make([]byte, width)})
	}
	return append(out, &expr.Cmp{Op: op, Register: reg(0), Data: r.Masked().Addr().AsSlice()})
}

func netmask(bitsSet, width int) []byte {
	mask := make([]byte, width)
	for i := range mask {
		n := min(max(bitsSet-i*8, 0), 8)
		mask[i] = bits.Reverse8(byte(1<<n - 1))
	}
	return mask
}

// payload loads a field of the packet from register at on.
func (e encoder) payload(f field, at int) expr.Any {
	switch f {
	case source, destination:
		offset := map[Family][2]uint32{IPv4: {12, 16}, IPv6: {8, 24}}[e.family][f]
		return &expr.Payload{DestRegister: reg(at), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(f.width(e.family))}
	case protocol:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(at)}
	case port:
		// TCP, UDP and SCTP have it in one place.
		return &expr.Payload{DestRegister: reg(at), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	case sourcePort:
		return &expr.Payload{DestRegister: reg(at), Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}
	case index, target, targetPort, class:
	}
	panic("a packet has no such field")
}

// load loads the parts of a key that packets have, one behind the other.
func (e encoder) load(fields []field) []expr.Any {
	var out []expr.Any
	at := 0
	for _, f := range fields {
		if f < index {
			out = append(out, e.payload(f, at))
		}
		at += f.width(e.family) / 4
	}
	return out
}

func (e encoder) words(fields []field) int { return widths(fields, e.family) / 4 }

// lookup matches when the key from register at on is in the set, or is not.
func (e encoder) lookup(set string, at int, not bool) expr.Any {
	s := e.sets[set]
	return &expr.Lookup{SourceRegister: reg(at), SetName: s.Name, SetID: s.ID, Invert: not}
}

// value looks a key up and puts the value into register to and on.
func (e encoder) value(set string, at, to int) expr.Any {
	s := e.sets[set]
	return &expr.Lookup{SourceRegister: reg(at), DestRegister: reg(to), IsDestRegSet: true, SetName: s.Name, SetID: s.ID}
}

// verdict goes where the class in register at leads.
func (e encoder) verdict(at int) expr.Any {
	s := e.sets[setClasses]
	return &expr.Lookup{SourceRegister: reg(at), IsDestRegSet: true, SetName: s.Name, SetID: s.ID}
}

// What a rule can do to a map (NFT_DYNSET_OP_*).
const (
	opUpdate = 1
	opDelete = 2
)

func (e encoder) remember(set string, op uint32, data uint32, seconds int) expr.Any {
	s := e.sets[set]
	return &expr.Dynset{SrcRegKey: reg(0), SrcRegData: data, SetName: s.Name, SetID: s.ID, Operation: op,
		Timeout: time.Duration(seconds) * time.Second}
}

// dnat sends the connection to the address and port from register at on.
func (e encoder) dnat(at int) expr.Any {
	family := uint32(unix.NFPROTO_IPV4)
	if e.family == IPv6 {
		family = unix.NFPROTO_IPV6
	}
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: reg(at), RegProtoMin: reg(at + target.width(e.family)/4), Specified: true}
}

// balance: random index → endpoint; remember it; go there. The endpoint lies behind the
// key that remembers, which is the longer one.
func (e encoder) balance(b Balance) []expr.Any {
	endpoints := schemaOf(pick(b.NodePort, setEndpoints, setNodePortEndpoints))
	affinity := schemaOf(pick(b.NodePort, setAffinity, setAffinityNodePorts))
	at := e.words(affinity.key)
	out := append(e.load(endpoints.key),
		&expr.Numgen{Register: reg(e.words(endpoints.key) - 1), Modulus: uint32(b.Count), Type: unix.NFT_NG_RANDOM, Offset: uint32(b.From)},
		e.value(endpoints.name, 0, at))
	if b.Remember > 0 {
		out = append(append(out, e.load(affinity.key)...), e.remember(affinity.name, opUpdate, reg(at), b.Remember))
	}
	return append(out, e.dnat(at))
}

// recall: remembered endpoint → is it still one? → remember it for longer; go there. The
// key of what is sticky is that of what is remembered without its first part, the client,
// and the endpoint behind it: the registers are laid so that it is there already.
func (e encoder) recall(r Recall) []expr.Any {
	affinity := schemaOf(pick(r.NodePort, setAffinity, setAffinityNodePorts))
	at := e.words(affinity.key)
	out := append(e.load(affinity.key), e.value(affinity.name, 0, at),
		e.lookup(pick(r.NodePort, setSticky, setStickyNodePorts), source.width(e.family)/4, false))
	return append(out, e.remember(affinity.name, opUpdate, reg(at), r.Remember), e.dnat(at))
}

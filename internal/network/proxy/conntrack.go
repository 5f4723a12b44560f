package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// stale says which UDP flows the kernel must forget. UDP has no connections: as long as
// a client goes on sending, its packets would follow the first one, to an endpoint that
// is gone, or to nowhere from a time when there was none.
type stale struct {
	c       Config
	byAddr  map[netip.AddrPort][]netip.AddrPort // who may answer
	byPort  map[uint16]*nodePortFlows
	isLocal func(netip.Addr) bool
	// left are TCP endpoints that end, or have ended, and what there is to forget of them.
	left map[netip.AddrPort]forgettable
	// lost: there were no rules until now. What was sent to a ClusterIP then, of any
	// protocol, leads nowhere, and so would the next connection from the same port.
	lost bool
}

type nodePortFlows struct{ may, gone []netip.AddrPort }

func newStale(c Config) *stale {
	return &stale{c: c, byAddr: map[netip.AddrPort][]netip.AddrPort{}, byPort: map[uint16]*nodePortFlows{}}
}

// at is where a UDP port of a Service is reached.
type at struct {
	addr netip.Addr
	port uint16
}

// note compares what a Service had and has.
func (s *stale) note(old, next []UDPPort) {
	had, has := map[at][]netip.AddrPort{}, map[at]bool{}
	for _, u := range old {
		had[at{u.Addr, u.Port}] = u.Serving
	}
	for _, u := range next {
		has[at{u.Addr, u.Port}] = true
		if before, same := had[at{u.Addr, u.Port}]; !same || !slices.Equal(before, u.Serving) {
			s.allow(u, before)
		}
	}
	for _, u := range old {
		if !has[at{u.Addr, u.Port}] {
			s.allow(UDPPort{Addr: u.Addr, Port: u.Port}, u.Serving)
		}
	}
}

func (s *stale) allow(u UDPPort, before []netip.AddrPort) {
	if u.Addr.IsValid() {
		s.byAddr[netip.AddrPortFrom(u.Addr, u.Port)] = u.Serving
		return
	}
	s.byPort[u.Port] = &nodePortFlows{may: u.Serving, gone: before}
}

func (s *stale) isEmpty() bool { return !s.lost && len(s.byAddr)+len(s.byPort)+len(s.left) == 0 }

// isStale says whether a flow is to be forgotten, by where it was sent to and who
// answers it.
func (s *stale) isStale(f flow) bool {
	p, to, from := f.protocol, f.to, f.from
	if s.lost && to == from && contains(s.c.ServiceRanges, to.Addr()) {
		return true
	}
	if p == TCP {
		what := s.left[from]
		return what == allFlows || what == handshakes && !f.connected
	}
	if p != UDP {
		return false
	}
	if may, ours := s.byAddr[to]; ours {
		return !slices.Contains(may, from)
	}
	flows := s.byPort[to.Port()]
	if flows == nil || slices.Contains(flows.may, from) {
		return false
	}
	// Others may use the port's number for things of their own: what goes is what led to
	// an endpoint of ours, or to a node port that was not one yet.
	return slices.Contains(flows.gone, from) || contains(s.c.PodRanges, from.Addr()) || from == to && s.isLocal(to.Addr())
}

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaID         = 12
	ctaZone       = 18

	statusAssured = 1 << 2 // of linux/netfilter/nf_conntrack_common.h

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src, ctaIPv4Dst, ctaIPv6Src, ctaIPv6Dst = 1, 2, 3, 4
	ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort  = 1, 2, 3
)

// flow is one entry of the kernel's table, as far as we look at it.
type flow struct {
	protocol Protocol
	// to is where the client sent it, from who answers it.
	to, from netip.AddrPort
	// connected: of TCP, the handshake is over; of others, there was an answer or more.
	connected bool
	// id holds the attributes that name it.
	id []byte
}

// conntrack is a socket to the kernel's table of flows. Reading the table by hand is
// several times as fast as with a general library, and a table can be long.
type conntrack struct{ conn *netlink.Conn }

// openConntrack opens a socket in the network namespace of the calling thread.
func openConntrack() (*conntrack, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open conntrack: %w", err)
	}
	if err := conn.SetReadBuffer(readBuffer); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open conntrack: %w", err)
	}
	return &conntrack{conn}, nil
}

func (c *conntrack) close() { c.conn.Close() }

// request is a message for one family; attributes follow the four bytes of its header.
func request(kind uint16, flags netlink.HeaderFlags, family Family, attributes []byte) netlink.Message {
	of := byte(unix.AF_INET)
	if family == IPv6 {
		of = unix.AF_INET6
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags},
		Data:   append([]byte{of, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// forget removes the stale flows and returns how many there were. It looks at every flow
// that there is.
func (c *conntrack) forget(s *stale, families []Family) (int, error) {
	if err := c.conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return 0, err
	}
	n := 0
	for _, family := range families {
		all, err := c.conn.Execute(request(ctGet, netlink.Dump, family, nil))
		if err != nil {
			return n, fmt.Errorf("list flows: %w", err)
		}
		for _, message := range all {
			f, ok := parseFlow(message.Data)
			if !ok || !s.isStale(f) {
				continue
			}
			_, err := c.conn.Execute(request(ctDelete, netlink.Acknowledge, family, f.id))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return n, fmt.Errorf("forget a flow: %w", err)
			}
			n++
		}
	}
	return n, nil
}

// eachAttribute walks netlink attributes: length, type, data, padded to four bytes.
func eachAttribute(b []byte, f func(kind uint16, data, whole []byte)) {
	for len(b) >= 4 {
		length := int(binary.NativeEndian.Uint16(b))
		if length < 4 || length > len(b) {
			return
		}
		padded := min((length+3)&^3, len(b))
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:length], b[:padded])
		b = b[padded:]
	}
}

func parseFlow(message []byte) (f flow, ok bool) {
	if len(message) < 4 {
		return f, false
	}
	eachAttribute(message[4:], func(kind uint16, data, whole []byte) {
		switch kind {
		case ctaTupleOrig:
			_, f.to, f.protocol = parseTuple(data)
			f.id = append(f.id, whole...)
		case ctaTupleReply:
			f.from, _, _ = parseTuple(data)
		case ctaStatus:
			f.connected = len(data) >= 4 && binary.BigEndian.Uint32(data)&statusAssured != 0
		case ctaID, ctaZone:
			f.id = append(f.id, whole...)
		}
	})
	return f, f.to.IsValid() && f.from.IsValid()
}

// parseTuple reads one direction of a flow.
func parseTuple(b []byte) (src, dst netip.AddrPort, protocol Protocol) {
	var t tuple
	eachAttribute(b, func(kind uint16, data, _ []byte) {
		switch kind {
		case ctaTupleIP:
			eachAttribute(data, t.address)
		case ctaTupleProto:
			eachAttribute(data, t.port)
		}
	})
	return netip.AddrPortFrom(t.from, t.fromPort), netip.AddrPortFrom(t.to, t.toPort), t.protocol
}

type tuple struct {
	from, to         netip.Addr
	fromPort, toPort uint16
	protocol         Protocol
}

func (t *tuple) address(part uint16, data, _ []byte) {
	switch part {
	case ctaIPv4Src, ctaIPv6Src:
		t.from, _ = netip.AddrFromSlice(data)
	case ctaIPv4Dst, ctaIPv6Dst:
		t.to, _ = netip.AddrFromSlice(data)
	}
}

func (t *tuple) port(part uint16, data, _ []byte) {
	switch {
	case part == ctaProtoNum && len(data) > 0:
		t.protocol = Protocol(data[0])
	case part == ctaProtoSrcPort && len(data) >= 2:
		t.fromPort = binary.BigEndian.Uint16(data)
	case part == ctaProtoDstPort && len(data) >= 2:
		t.toPort = binary.BigEndian.Uint16(data)
	}
}

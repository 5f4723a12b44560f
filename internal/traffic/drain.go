package traffic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// lookFirst and lookMost bound the pause between two looks at a Pod's connections.
	lookFirst = 5 * time.Millisecond
	lookMost  = 100 * time.Millisecond
	// tick is the grain of the kernel's own times in a connection: a jiffy is at most
	// 10 ms.
	tick = 20 * time.Millisecond
	// lull is how long nothing may move on a connection on which it cannot be told
	// whether the last words were a question.
	lull = time.Second
	// firstWords is how soon after it has connected a client asks.
	firstWords = 500 * time.Millisecond
	// landing is for how long packets may be under way that a proxy sent before it
	// confirmed: over the network, or in the queue of a busy processor.
	landing = 50 * time.Millisecond
)

// connection is one TCP connection of a client to the Pod, at one moment.
type connection struct {
	// queued: bytes wait to be read by the Pod, or to be taken by the client.
	queued bool
	// received and sent count the bytes from and the segments to the client.
	received uint64
	sent     uint32
	// sinceReceived and sinceSent say how long ago the last ones were.
	sinceReceived, sinceSent time.Duration
}

// isBusy says whether a question is unanswered, as far as one can see from outside: the
// kernel knows when data last came and when data last went, not what they were.
func (c connection) isBusy() bool {
	switch asked, answered := c.sinceReceived, c.sinceSent; {
	case c.queued:
		return true
	case c.received == 0:
		return answered < firstWords // time since it was made
	case c.sent == 0:
		return true // never answered
	case asked+tick < answered:
		return true // asked after the last answer
	case asked > answered:
		return answered < tick // answered, unless more is to come
	case asked == answered:
		return answered < 5*tick // in one jiffy; most likely a quick answer
	default:
		// A client that asks again at once, or that adds a word which is no question, as
		// HTTP/2 does to return credit.
		return asked < lull
	}
}

// isNext says whether the connection, busy in first, has gone on to another question:
// answers have gone out since, and then more has come in.
func (c connection) isNext(first connection) bool {
	return c.sent > first.sent && c.received > first.received
}

// drain returns when the requests that are in flight now on the Pod's connections are
// answered, or when until is reached or ctx ends. Connections that carry one request
// after another are left when the present one is answered: they may go on for ever.
func drain(ctx context.Context, path string, until time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	sockets, err := openSockets(path)
	if err != nil {
		return err
	}
	defer sockets.close()
	return settleDown(ctx, sockets.look)
}

// settleDown looks again and again until nothing of what was busy first still is. What
// connects while packets land belongs to it.
func settleDown(ctx context.Context, look func() (view, error)) error {
	first := questions{}
	start := time.Now()
	for pause := time.Duration(0); ; pause = min(max(2*pause, lookFirst), lookMost) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		since := time.Since(start)
		now, err := look()
		if err != nil {
			return err
		}
		landed := since >= landing && (now.halfOpen == 0 || since >= firstWords)
		first.answered(now)
		if !landed {
			first.add(now)
		} else if !first.open() {
			return nil
		}
	}
}

// questions are the connections that are waited for, as they were when first seen. One
// that is done is kept empty, so that it does not count again.
type questions map[socketID]connection

func (q questions) answered(now view) {
	for id, was := range q {
		if c, open := now.connections[id]; !open || !c.isBusy() || c.isNext(was) {
			q[id] = connection{}
		}
	}
}

func (q questions) add(now view) {
	for id, c := range now.connections {
		if _, seen := q[id]; !seen && c.isBusy() {
			q[id] = c
		}
	}
}

func (q questions) open() bool {
	for _, c := range q {
		if c != (connection{}) {
			return true
		}
	}
	return false
}

// view is what there is at one moment.
type view struct {
	connections map[socketID]connection
	// halfOpen counts those that are being made.
	halfOpen int
}

// socketID tells connections apart: the kernel's cookie.
type socketID [2]uint32

// sockets reads the sockets of one network namespace.
type sockets struct{ handle *netlink.Handle }

func openSockets(path string) (*sockets, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("enter the Pod's network namespace: %w", err)
	}
	if err := handle.SetSocketTimeout(5 * time.Second); err != nil {
		handle.Close()
		return nil, err
	}
	return &sockets{handle}, nil
}

func (s *sockets) close() { s.handle.Close() }

// States of linux/tcp.h in which a client may wait for an answer, and others.
const (
	tcpEstablished = 1
	tcpSynReceived = 3
	tcpCloseWait   = 8 // the client has said all it will
	tcpListen      = 10
)

// look finds the connections to ports on which the Pod listens.
func (s *sockets) look() (view, error) {
	v := view{connections: map[socketID]connection{}}
	listening, found := map[uint16]bool{}, map[uint16]map[socketID]connection{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := s.handle.SocketDiagTCPInfo(family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return v, fmt.Errorf("list the Pod's connections: %w", err)
		}
		for _, one := range all {
			port := one.InetDiagMsg.ID.SourcePort
			switch one.InetDiagMsg.State {
			case tcpListen:
				listening[port] = true
			case tcpSynReceived:
				v.halfOpen++
			case tcpEstablished, tcpCloseWait:
				if found[port] == nil {
					found[port] = map[socketID]connection{}
				}
				found[port][one.InetDiagMsg.ID.Cookie] = read(one)
			}
		}
	}
	for port := range listening {
		for id, c := range found[port] {
			v.connections[id] = c
		}
	}
	return v, nil
}

func read(one *netlink.InetDiagTCPInfoResp) connection {
	c := connection{queued: one.InetDiagMsg.RQueue > 0 || one.InetDiagMsg.WQueue > 0}
	if info := one.TCPInfo; info != nil {
		c.received, c.sent = info.Bytes_received, info.Data_segs_out
		c.sinceReceived, c.sinceSent = time.Duration(info.Last_data_recv)*time.Millisecond, time.Duration(info.Last_data_sent)*time.Millisecond
	}
	return c
}

// Package netlab builds network namespaces for tests of real packets: a node with Pods on
// a bridge and a client outside. It needs root; tests are skipped without.
package netlab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"mend/internal/testkit"
)

// Lab is a node, three Pods and a client outside, each in a network namespace of its
// own. Nothing of it is seen by the machine.
//
//	pod a 10.42.0.2  fd42::2 ─┐
//	pod b 10.42.0.3  fd42::3 ─┼─ bridge 10.42.0.1 fd42::1 [node] 198.18.0.1 ── 198.18.0.7 [outside]
//	pod c 10.42.0.4  fd42::4 ─┘
type Lab struct {
	t testing.TB
	// Node is the node, A, B and C are its Pods, Outside is a client.
	Node, A, B, C, Outside netns.NsHandle
}

// New builds one. With routed, Pods have an address alone and reach each other
// through the node; else the bridge connects them, and br_netfilter lets the node see it.
func New(t testing.TB, routed bool) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	l := &Lab{t: t}
	for _, ns := range []*netns.NsHandle{&l.Node, &l.A, &l.B, &l.C, &l.Outside} {
		In(t, netns.None(), func() (err error) { *ns, err = netns.New(); return err })
		t.Cleanup(func() { _ = ns.Close() })
		In(t, *ns, func() error {
			// Without a second of looking for duplicates.
			return errors.Join(SetUp("lo"), sysctl("ipv6/conf/all/accept_dad", "0"), sysctl("ipv6/conf/default/accept_dad", "0"))
		})
	}
	In(t, l.Node, func() error { return l.buildNode(routed) })
	for i, pod := range []netns.NsHandle{l.A, l.B, l.C} {
		In(t, l.Node, func() error { return l.connectPod(i, pod) })
		In(t, pod, func() error { return configurePod(i, routed) })
	}
	In(t, l.Node, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wan"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(l.Outside))}
		return errors.Join(netlink.LinkAdd(veth), SetAddress("wan", "198.18.0.1/24"), SetUp("wan"), route("0.0.0.0/0", "198.18.0.7", "wan"))
	})
	In(t, l.Outside, func() error {
		return errors.Join(SetAddress("eth0", "198.18.0.7/24"), SetUp("eth0"), route("0.0.0.0/0", "198.18.0.1", "eth0"))
	})
	for _, ns := range []netns.NsHandle{l.Node, l.A, l.B, l.C, l.Outside} {
		In(t, ns, func() error { return operational(t) })
	}
	return l
}

// operational waits until every interface takes packets: a veth drops them for a moment
// after it was set up.
func operational(t testing.TB) error {
	links, err := netlink.LinkList()
	for _, link := range links {
		testkit.WaitFor(t, "the interface "+link.Attrs().Name, func() error {
			now, err := netlink.LinkByIndex(link.Attrs().Index)
			if err == nil && now.Attrs().OperState != netlink.OperUp && link.Attrs().Name != "lo" {
				err = errors.New(now.Attrs().OperState.String())
			}
			return err
		})
	}
	return err
}

// In runs f in a network namespace (or a new thread of this one).
func In(t testing.TB, ns netns.NsHandle, f func() error) {
	t.Helper()
	if err := Do(ns, f); err != nil {
		t.Fatal(err)
	}
}

// Do runs f in a network namespace (or a new thread of this one) and returns its error.
func Do(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if ns.IsOpen() {
			if err := netns.Set(ns); err != nil {
				done <- err
				return
			}
		}
		done <- f()
	}()
	return <-done
}

func sysctl(path, value string) error {
	return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0)
}

// SetUp sets an interface of this namespace up.
func SetUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// SetAddress gives an interface of this namespace an address, as "192.0.2.1/24".
func SetAddress(name, prefix string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	return netlink.AddrAdd(link, a)
}

func route(to, via, name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	p := netip.MustParsePrefix(to)
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Scope: netlink.SCOPE_LINK}
	if via != "" {
		r.Gw, r.Scope = net.ParseIP(via), netlink.SCOPE_UNIVERSE
	}
	return netlink.RouteAdd(r)
}

func (l *Lab) buildNode(routed bool) error {
	bridgeNF := "1"
	if routed {
		bridgeNF = "0"
	}
	return errors.Join(
		sysctl("ipv4/ip_forward", "1"), sysctl("ipv6/conf/all/forwarding", "1"),
		netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods"}}),
		SetAddress("pods", "10.42.0.1/24"), SetAddress("pods", "fd42::1/64"), SetUp("pods"),
		sysctl("ipv4/conf/pods/route_localnet", "1"),
		sysctl("bridge/bridge-nf-call-iptables", bridgeNF), sysctl("bridge/bridge-nf-call-ip6tables", bridgeNF),
	)
}

func (l *Lab) connectPod(i int, pod netns.NsHandle) error {
	name := fmt.Sprintf("pod%d", i)
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pod))})
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	bridge, err := netlink.LinkByName("pods")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetMasterByIndex(link, bridge.Attrs().Index), netlink.LinkSetHairpin(link, true), netlink.LinkSetUp(link))
}

func configurePod(i int, routed bool) error {
	bits4, bits6 := 24, 64
	if routed {
		bits4, bits6 = 32, 128
	}
	err := errors.Join(SetAddress("eth0", fmt.Sprintf("10.42.0.%d/%d", i+2, bits4)), SetAddress("eth0", fmt.Sprintf("fd42::%d/%d", i+2, bits6)), SetUp("eth0"))
	if routed {
		err = errors.Join(err, route("10.42.0.1/32", "", "eth0"), route("fd42::1/128", "", "eth0"))
	}
	return errors.Join(err, route("0.0.0.0/0", "10.42.0.1", "eth0"), route("::/0", "fd42::1", "eth0"))
}

// Serve answers TCP and UDP at a port with the server's name and the client's address.
func (l *Lab) Serve(ns netns.NsHandle, name string, port int) {
	l.t.Helper()
	var listener net.Listener
	var packets net.PacketConn
	In(l.t, ns, func() (err error) {
		if listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
			return err
		}
		packets, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	})
	l.t.Cleanup(func() { listener.Close(); packets.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buffer := make([]byte, 64)
				for {
					if _, err := conn.Read(buffer); err != nil {
						return
					}
					fmt.Fprintf(conn, "%s %s", name, hostOf(conn.RemoteAddr()))
				}
			}()
		}
	}()
	go func() {
		buffer := make([]byte, 64)
		for {
			_, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			fmt.Fprint(writerTo{packets, from}, name, " ", hostOf(from))
		}
	}()
}

type writerTo struct {
	net.PacketConn
	to net.Addr
}

func (w writerTo) Write(b []byte) (int, error) { return w.WriteTo(b, w.to) }

func hostOf(a net.Addr) string {
	ap, _ := netip.ParseAddrPort(a.String())
	return ap.Addr().Unmap().String()
}

// Dial opens a connection from a namespace.
func (l *Lab) Dial(ns netns.NsHandle, network, to string) (net.Conn, error) {
	return l.DialFor(ns, network, to, Patience)
}

// DialHere opens a connection from the namespace of the calling thread.
func DialHere(to string) (net.Conn, error) { return (&net.Dialer{Timeout: Patience}).Dial("tcp", to) }

// DialFor is Dial under a limit.
func (l *Lab) DialFor(ns netns.NsHandle, network, to string, limit time.Duration) (conn net.Conn, err error) {
	In(l.t, ns, func() error {
		conn, err = (&net.Dialer{Timeout: limit}).Dial(network, to)
		return nil
	})
	return conn, err
}

// An answer takes milliseconds; a busy machine may need more. What is expected to be
// silent is not waited for that long.
const (
	Patience   = 5 * time.Second
	Impatience = 300 * time.Millisecond
)

// Ask sends one word on a connection and returns the answer.
func Ask(conn net.Conn) (string, error) { return AskFor(conn, Patience) }

// AskFor is Ask under a limit.
func AskFor(conn net.Conn, limit time.Duration) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "hi"); err != nil {
		return "", err
	}
	buffer := make([]byte, 64)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

// Get is what a new connection is answered, or in short why not.
func (l *Lab) Get(ns netns.NsHandle, network, to string) string {
	return l.GetFor(ns, network, to, Patience)
}

// GetFor is Get under a limit.
func (l *Lab) GetFor(ns netns.NsHandle, network, to string, limit time.Duration) string {
	l.t.Helper()
	conn, err := l.DialFor(ns, network, to, limit)
	if err != nil {
		return Short(err)
	}
	defer conn.Close()
	answer, err := AskFor(conn, limit)
	if err != nil {
		return Short(err)
	}
	return answer
}

// Short names an error: refused, silence, or as it is.
func Short(err error) string {
	if errors.Is(err, unix.ECONNREFUSED) {
		return "refused"
	}
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() {
		return "silence"
	}
	return err.Error()
}

package proxy

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"mend/internal/network/catalog"
	"mend/internal/testkit"
)

// lab is a node, three Pods and a client outside, each in a network namespace of its
// own. Nothing of it is seen by the machine.
//
//	pod a 10.42.0.2  fd42::2 ─┐
//	pod b 10.42.0.3  fd42::3 ─┼─ bridge 10.42.0.1 fd42::1 [node] 192.0.2.1 ── 192.0.2.7 [outside]
//	pod c 10.42.0.4  fd42::4 ─┘
type lab struct {
	t                      testing.TB
	node, a, b, c, outside netns.NsHandle
}

// newLab builds one. With routed, Pods have an address alone and reach each other
// through the node; else the bridge connects them, and br_netfilter lets the node see it.
func newLab(t testing.TB, routed bool) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	l := &lab{t: t}
	for _, ns := range []*netns.NsHandle{&l.node, &l.a, &l.b, &l.c, &l.outside} {
		in(t, netns.None(), func() (err error) { *ns, err = netns.New(); return err })
		t.Cleanup(func() { _ = ns.Close() })
		in(t, *ns, func() error {
			// Without a second of looking for duplicates.
			return errors.Join(up("lo"), sysctl("ipv6/conf/all/accept_dad", "0"), sysctl("ipv6/conf/default/accept_dad", "0"))
		})
	}
	in(t, l.node, func() error { return l.buildNode(routed) })
	for i, pod := range []netns.NsHandle{l.a, l.b, l.c} {
		in(t, l.node, func() error { return l.connectPod(i, pod) })
		in(t, pod, func() error { return configurePod(i, routed) })
	}
	in(t, l.node, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wan"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(l.outside))}
		return errors.Join(netlink.LinkAdd(veth), address("wan", "192.0.2.1/24"), up("wan"), route("0.0.0.0/0", "192.0.2.7", "wan"))
	})
	in(t, l.outside, func() error {
		return errors.Join(address("eth0", "192.0.2.7/24"), up("eth0"), route("0.0.0.0/0", "192.0.2.1", "eth0"))
	})
	for _, ns := range []netns.NsHandle{l.node, l.a, l.b, l.c, l.outside} {
		in(t, ns, func() error { return operational(t) })
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

// in runs f in a network namespace (or a new thread of this one).
func in(t testing.TB, ns netns.NsHandle, f func() error) {
	t.Helper()
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
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func sysctl(path, value string) error {
	return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0)
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func address(name, prefix string) error {
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
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p), Scope: netlink.SCOPE_LINK}
	if via != "" {
		r.Gw, r.Scope = net.ParseIP(via), netlink.SCOPE_UNIVERSE
	}
	return netlink.RouteAdd(r)
}

func (l *lab) buildNode(routed bool) error {
	bridgeNF := "1"
	if routed {
		bridgeNF = "0"
	}
	return errors.Join(
		sysctl("ipv4/ip_forward", "1"), sysctl("ipv6/conf/all/forwarding", "1"),
		netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods"}}),
		address("pods", "10.42.0.1/24"), address("pods", "fd42::1/64"), up("pods"),
		sysctl("ipv4/conf/pods/route_localnet", "1"),
		sysctl("bridge/bridge-nf-call-iptables", bridgeNF), sysctl("bridge/bridge-nf-call-ip6tables", bridgeNF),
	)
}

func (l *lab) connectPod(i int, pod netns.NsHandle) error {
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
	err := errors.Join(address("eth0", fmt.Sprintf("10.42.0.%d/%d", i+2, bits4)), address("eth0", fmt.Sprintf("fd42::%d/%d", i+2, bits6)), up("eth0"))
	if routed {
		err = errors.Join(err, route("10.42.0.1/32", "", "eth0"), route("fd42::1/128", "", "eth0"))
	}
	return errors.Join(err, route("0.0.0.0/0", "10.42.0.1", "eth0"), route("::/0", "fd42::1", "eth0"))
}

// serve answers TCP and UDP at a port with the server's name and the client's address.
func (l *lab) serve(ns netns.NsHandle, name string, port int) {
	l.t.Helper()
	var listener net.Listener
	var packets net.PacketConn
	in(l.t, ns, func() (err error) {
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

// dial opens a connection from a namespace.
func (l *lab) dial(ns netns.NsHandle, network, to string) (net.Conn, error) {
	return l.dialFor(ns, network, to, patience)
}

// dialHere opens a connection from the namespace of the calling thread.
func dialHere(to string) (net.Conn, error) { return (&net.Dialer{Timeout: patience}).Dial("tcp", to) }

func (l *lab) dialFor(ns netns.NsHandle, network, to string, limit time.Duration) (conn net.Conn, err error) {
	in(l.t, ns, func() error {
		conn, err = (&net.Dialer{Timeout: limit}).Dial(network, to)
		return nil
	})
	return conn, err
}

// An answer takes milliseconds; a busy machine may need more. What is expected to be
// silent is not waited for that long.
const (
	patience   = 5 * time.Second
	impatience = 300 * time.Millisecond
)

// ask sends one word on a connection and returns the answer.
func ask(conn net.Conn) (string, error) { return askFor(conn, patience) }

func askFor(conn net.Conn, limit time.Duration) (string, error) {
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

// get is what a new connection is answered, or in short why not.
func (l *lab) get(ns netns.NsHandle, network, to string) string {
	return l.getFor(ns, network, to, patience)
}

func (l *lab) getFor(ns netns.NsHandle, network, to string, limit time.Duration) string {
	l.t.Helper()
	conn, err := l.dialFor(ns, network, to, limit)
	if err != nil {
		return short(err)
	}
	defer conn.Close()
	answer, err := askFor(conn, limit)
	if err != nil {
		return short(err)
	}
	return answer
}

func short(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	}
	if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() {
		return "silence"
	}
	return err.Error()
}

// proxied is a proxy in the lab's node, driven by hand.
type proxied struct {
	*Proxy
	t  testing.TB
	mu sync.Mutex
}

func (l *lab) config() Config {
	c := here
	c.Bridge, c.Catalog = "pods", catalog.New()
	c.Log = slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return c
}

// proxy starts a proxy in the node without Services.
func (l *lab) proxy() *proxied {
	l.t.Helper()
	p := &proxied{t: l.t}
	in(l.t, l.node, func() (err error) {
		if p.Proxy, err = New(l.config()); err != nil {
			return err
		}
		return errors.Join(p.compare(), p.route())
	})
	l.t.Cleanup(p.close)
	return p
}

// set brings Services into the kernel, as follow does.
func (p *proxied) set(services ...catalog.Service) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	flows, next := newStale(p.c), map[catalog.Key]Rendering{}
	for _, s := range services {
		key := catalog.Key{Namespace: s.Object.Namespace, Name: s.Object.Name}
		next[key] = render(p.c, s)
		flows.note(p.ledger.services[key].UDP, next[key].UDP)
	}
	if err := p.kernel.commit(p.ledger.change(next)); err != nil {
		p.t.Fatal(err)
	}
	p.forget(flows)
}

// verify compares what the kernel holds with the ledger.
func (p *proxied) verify() {
	p.t.Helper()
	held, err := p.kernel.read()
	if err != nil {
		p.t.Fatal(err)
	}
	want := map[slot]string{}
	for _, e := range p.ledger.all() {
		want[e.slot()] = e.Value
	}
	var wrong []string
	for s, value := range want {
		if got, ok := held[s]; !ok || got != value {
			wrong = append(wrong, fmt.Sprintf("lacks %v", s.element(value)))
		}
	}
	for s, value := range held {
		if _, ok := want[s]; !ok {
			wrong = append(wrong, fmt.Sprintf("has %v", s.element(value)))
		}
	}
	if len(wrong) > 0 {
		p.t.Fatalf("the kernel\n%s", strings.Join(wrong, "\n"))
	}
}

// udp makes a Service one of UDP.
var udp = protocolOf(v1.ProtocolUDP)

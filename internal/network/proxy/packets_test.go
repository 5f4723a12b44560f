package proxy

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"mend/internal/network/catalog"
	"mend/internal/network/netlab"
)

// exchanges are Services and what connections to them are answered.
func (l *lab) exchanges() []exchange {
	return []exchange{
		{"ClusterIP", behind(web(), "10.42.0.3@here"), "tcp", []step{
			{l.A, "10.43.0.10:80", "b 10.42.0.2"}, {l.B, "10.43.0.10:80", "b 10.42.0.1"},
			{l.Node, "10.43.0.10:80", "b 10.42.0.1"}, {l.Outside, "10.43.0.10:80", "b 10.42.0.1"},
			{l.A, "10.43.0.10:81", "refused"}, {l.A, "10.43.0.11:80", "silence"}, {l.A, "10.42.0.3:8080", "b 10.42.0.2"},
		}},
		{"ClusterIP for UDP", behind(web(udp), "10.42.0.3@here"), "udp", []step{
			{l.A, "10.43.0.10:80", "b 10.42.0.2"}, {l.B, "10.43.0.10:80", "b 10.42.0.1"}, {l.Node, "10.43.0.10:80", "b 10.42.0.1"},
		}},
		{"no endpoints", behind(web(nodePort(30080), externalIPs("203.0.113.1")), "10.42.0.3@here unready"), "tcp", []step{
			{l.A, "10.43.0.10:80", "refused"}, {l.Node, "10.43.0.10:80", "refused"}, {l.Outside, "198.18.0.1:30080", "refused"},
			{l.Node, "127.0.0.1:30080", "refused"}, {l.Outside, "203.0.113.1:80", "refused"},
		}},
		{"no endpoints for UDP", behind(web(udp, nodePort(30080)), "10.42.0.3@here unready"), "udp", []step{
			// Not from a Pod that has just talked to another: see the chain "refuse".
			{l.Outside, "10.43.0.10:80", "refused"}, {l.Outside, "198.18.0.1:30080", "refused"},
		}},
		{"node port", behind(web(nodePort(30080)), "10.42.0.3@here"), "tcp", []step{
			{l.Outside, "198.18.0.1:30080", "b 10.42.0.1"}, {l.A, "198.18.0.1:30080", "b 10.42.0.1"}, {l.B, "198.18.0.1:30080", "b 10.42.0.1"},
			{l.Node, "198.18.0.1:30080", "b 10.42.0.1"}, {l.Node, "127.0.0.1:30080", "b 10.42.0.1"}, {l.A, "10.42.0.1:30080", "b 10.42.0.1"},
		}},
		{"external Local", behind(web(nodePort(30080), externalIPs("203.0.113.1"), externalLocal), "10.42.0.3@here", "10.42.0.4@there"), "tcp", []step{
			{l.Outside, "198.18.0.1:30080", "b 198.18.0.7"}, {l.Outside, "203.0.113.1:80", "b 198.18.0.7"}, {l.Outside, "198.18.0.1:30080", "b 198.18.0.7"},
		}},
		{"external Local with none here", behind(web(nodePort(30080), externalLocal), "10.42.0.4@there"), "tcp", []step{
			{l.Outside, "198.18.0.1:30080", "silence"}, {l.A, "198.18.0.1:30080", "c 10.42.0.2"}, {l.Node, "127.0.0.1:30080", "c 10.42.0.1"},
		}},
		{"internal Local with none here", behind(web(internalLocal), "10.42.0.4@there"), "tcp", []step{{l.A, "10.43.0.10:80", "silence"}}},
		{"load balancer on the node's address", behind(web(loadBalancer("198.18.0.1"), nodePort(30080), loadBalancer()), "10.42.0.3@here"), "tcp", []step{
			{l.Outside, "198.18.0.1:80", "b 10.42.0.1"}, {l.A, "198.18.0.1:80", "b 10.42.0.1"}, {l.Node, "198.18.0.1:80", "b 10.42.0.1"},
		}},
		{"load balancer for some", behind(web(loadBalancer("198.18.0.1"), func(s *v1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"198.18.0.0/24", "198.18.0.7/32"}
		}), "10.42.0.3@here"), "tcp", []step{{l.Outside, "198.18.0.1:80", "b 10.42.0.1"}, {l.A, "198.18.0.1:80", "silence"}}},
		{"IPv6", catalog.Service{Object: web(nodePort(30080), func(s *v1.Service) { s.Spec.ClusterIPs = []string{"fd43::a"} }),
			Slices: []*discovery.EndpointSlice{slice(v1.ProtocolTCP, "fd42::3@here")}}, "tcp", []step{
			{l.A, "[fd43::a]:80", "b fd42::2"}, {l.B, "[fd43::a]:80", "b fd42::1"}, {l.Node, "[fd43::a]:80", "b fd42::1"},
			{l.A, "[fd42::1]:30080", "b fd42::1"}, {l.A, "[fd43::b]:80", "silence"},
		}},
	}
}

type exchange struct {
	name    string
	service catalog.Service
	network string
	steps   []step
}

// The same real packets with both ways to connect Pods.
func TestRealPackets(t *testing.T) {
	for name, routed := range map[string]bool{"routed": true, "bridged": false} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, routed)
			for pod, ns := range map[string]netns.NsHandle{"a": l.A, "b": l.B, "c": l.C} {
				l.Serve(ns, pod, 8080)
			}
			p := l.proxy()
			for _, tt := range l.exchanges() {
				t.Run(tt.name, func(t *testing.T) {
					p.set(tt.service)
					for _, s := range tt.steps {
						limit := netlab.Patience
						if s.want == "silence" {
							limit = netlab.Impatience
						}
						if got := l.GetFor(s.from, tt.network, s.to, limit); got != s.want {
							t.Errorf("%s: %s, want %s", s.to, got, s.want)
						}
					}
				})
			}
			p.verify()
		})
	}
}

type step struct {
	from netns.NsHandle
	to   string
	want string
}

func TestConnectionsAreSpread(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.A, "a", 8080)
	l.Serve(l.B, "b", 8080)
	l.proxy().set(behind(web(), "10.42.0.2@here", "10.42.0.3@here"))
	seen := map[string]int{}
	const rounds = 100
	for range rounds {
		name, _, _ := strings.Cut(l.Get(l.C, "tcp", "10.43.0.10:80"), " ")
		seen[name]++
	}
	// A fair coin shows less than 20 of 100 once in 10^10.
	if seen["a"]+seen["b"] != rounds || seen["a"] < 20 || seen["b"] < 20 {
		t.Errorf("answers of %v", seen)
	}
}

// While there always is an endpoint, no connection is refused, however often their number
// changes: not even that whose first packet passes in the moment of a change.
func TestNoConnectionIsRefusedWhileEndpointsChange(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.A, "a", 8080)
	l.Serve(l.B, "b", 8080)
	p := l.proxy()
	change := func(endpoints ...string) {
		p.set(behind(web(nodePort(30080)), endpoints...))
		if err := p.kernel.dropUnused(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	change("10.42.0.2@here")
	const each = 10000
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var clients sync.WaitGroup
	for _, c := range []struct {
		from netns.NsHandle
		to   string
	}{{l.C, "10.43.0.10:80"}, {l.Outside, "198.18.0.1:30080"}} {
		clients.Go(func() {
			netlab.In(t, c.from, func() error {
				for made := range each {
					conn, err := (&net.Dialer{Timeout: netlab.Patience}).DialContext(ctx, "tcp", c.to)
					if err != nil {
						t.Errorf("connection %d to %s: %v", made, c.to, err)
						return nil
					}
					_ = conn.(*net.TCPConn).SetLinger(0) // the port is free at once
					conn.Close()
				}
				return nil
			})
		})
	}
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		default:
			change("10.42.0.2@here", "10.42.0.3@here")
			change("10.42.0.3@here")
		}
	}
}

func TestRealSessionAffinity(t *testing.T) {
	l := newLab(t, true)
	for pod, ns := range map[string]netns.NsHandle{"a": l.A, "b": l.B} {
		l.Serve(ns, pod, 8080)
	}
	p := l.proxy()
	for _, tt := range []struct {
		name   string
		s      *v1.Service
		client netns.NsHandle
		to     string
		a, b   string
	}{
		{"ClusterIP", web(sticky(60)), l.C, "10.43.0.10:80", "10.42.0.2@here", "10.42.0.3@here"},
		{"node port", web(sticky(60), nodePort(30080)), l.Outside, "198.18.0.1:30080", "10.42.0.2@here", "10.42.0.3@here"},
		{"external Local", web(sticky(60), nodePort(30081), externalLocal), l.Outside, "198.18.0.1:30081", "10.42.0.2@here", "10.42.0.3@here"},
		{"IPv6", web(sticky(60), func(s *v1.Service) { s.Spec.ClusterIPs = []string{"fd43::a"} }), l.C, "[fd43::a]:80", "fd42::2@here", "fd42::3@here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			same := func(n int) string {
				t.Helper()
				first := l.Get(tt.client, "tcp", tt.to)
				for range n {
					if again := l.Get(tt.client, "tcp", tt.to); again != first {
						t.Fatalf("first %s, then %s", first, again)
					}
				}
				return first[:1]
			}
			p.set(behind(tt.s, tt.a, tt.b))
			first := same(12)
			left := map[string]string{"a": tt.b, "b": tt.a}[first]
			p.set(behind(tt.s, left))
			second := same(3)
			if second == first {
				t.Errorf("still at %s, which is gone", first)
			}
			p.set(behind(tt.s, tt.a, tt.b))
			if third := same(12); third != second {
				t.Errorf("went back to %s although %s was remembered", third, second)
			}
		})
	}
}

// A UDP client that goes on sending from its socket reaches whoever serves now.
func TestUDPClientsFollowTheEndpoints(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.A, "a", 8080)
	l.Serve(l.B, "b", 8080)
	p := l.proxy()
	s := web(udp, nodePort(30053))
	for _, to := range []string{"10.43.0.10:80", "198.18.0.1:30053"} {
		p.set(behind(s))
		conn, err := l.Dial(l.Outside, "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		got := []string{}
		for _, endpoint := range []string{"", "10.42.0.2@here", "10.42.0.3@here", "", "10.42.0.2@here"} {
			p.set(behind(s, strings.Fields(endpoint)...))
			answer, err := netlab.Ask(conn)
			if err != nil {
				answer = netlab.Short(err)
			}
			got = append(got, answer)
		}
		if want := "[refused a 10.42.0.1 b 10.42.0.1 refused a 10.42.0.1]"; fmt.Sprint(got) != want {
			t.Errorf("%s: answered by %v, want %v", to, got, want)
		}
	}
}

// A flow that has nothing to do with a Service keeps going when a UDP Service changes.
func TestOtherUDPFlowsStay(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.Outside, "o", 30053)
	l.Serve(l.A, "a", 8080)
	p := l.proxy()
	conn, err := l.Dial(l.B, "udp", "198.18.0.7:30053")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	local := conn.LocalAddr().String()
	if _, err := netlab.Ask(conn); err != nil {
		t.Skip("no answer without masquerading") // the lab's outside has a route back
	}
	p.set(behind(web(udp, nodePort(30053)), "10.42.0.2@here"))
	p.set(behind(web(udp, nodePort(30053))))
	if answer, err := netlab.Ask(conn); err != nil || answer != "o 10.42.0.3" {
		t.Errorf("%s is answered %q, %v", local, answer, err)
	}
}

// Connections in flight stay with their endpoint, new ones never meet a moment without.
func TestChangesDropNothing(t *testing.T) {
	l := newLab(t, true)
	for pod, ns := range map[string]netns.NsHandle{"a": l.A, "b": l.B} {
		l.Serve(ns, pod, 8080)
	}
	p := l.proxy()
	p.set(behind(web(), "10.42.0.2@here"))
	long, err := l.Dial(l.C, "tcp", "10.43.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	stop, failed := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(failed)
		netlab.In(t, l.C, func() error {
			for n := 0; ; n++ {
				select {
				case <-stop:
					t.Logf("%d connections", n)
					return nil
				default:
				}
				conn, err := net.Dial("tcp", "10.43.0.10:80")
				if err == nil {
					_, err = netlab.Ask(conn)
					conn.Close()
				}
				if err != nil {
					failed <- fmt.Sprintf("after %d connections: %v", n, err)
					return nil
				}
			}
		})
	}()
	for range 150 {
		for _, endpoints := range [][]string{{"10.42.0.3@here"}, {"10.42.0.2@here", "10.42.0.3@here"}, {"10.42.0.2@here ending"}, {"10.42.0.2@here"}} {
			p.set(behind(web(), endpoints...))
		}
	}
	close(stop)
	if why, bad := <-failed; bad {
		t.Error(why)
	}
	p.set(behind(web(), "10.42.0.3@here"))
	if answer, err := netlab.Ask(long); err != nil || answer != "a 10.42.0.4" {
		t.Errorf("the connection in flight got %q, %v", answer, err)
	}
}

// What was sent to a ClusterIP before there were rules does not spoil its port.
func TestFlowsFromBeforeTheRules(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.A, "a", 8080)
	ask := func() string {
		var got string
		netlab.In(t, l.C, func() error {
			from := &net.TCPAddr{Port: 33333}
			conn, err := (&net.Dialer{Timeout: netlab.Impatience, LocalAddr: from}).Dial("tcp", "10.43.0.10:80")
			if err != nil {
				got = netlab.Short(err)
				return nil
			}
			defer conn.Close()
			got, err = netlab.Ask(conn)
			return err
		})
		return got
	}
	p := l.proxy() // conntrack is on only while there are rules that want it
	if err := p.kernel.remove(); err != nil {
		t.Fatal(err)
	}
	netlab.In(t, l.Node, func() error { return keepTracking(t) })
	if got := ask(); got != "silence" {
		t.Fatalf("without rules: %s", got)
	}
	netlab.In(t, l.Node, p.compare)
	p.set(behind(web(), "10.42.0.2@here"))
	if got := ask(); got != "a 10.42.0.4" {
		t.Errorf("from the same port: %s", got)
	}
}

// keepTracking makes the kernel track connections, as masquerading of Pods does.
func keepTracking(t *testing.T) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyIPv4})
	chain := conn.AddChain(&nftables.Chain{Name: "c", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: encoder{family: IPv4}.rule(Rule{NewConnection{}})})
	return conn.Flush()
}

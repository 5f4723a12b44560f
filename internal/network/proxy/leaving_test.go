package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	v1 "k8s.io/api/core/v1"

	"mend/internal/network/catalog"
	"mend/internal/network/netlab"
	"mend/internal/testkit"
)

func TestWhatIsForgottenOfEndpointsThatEnd(t *testing.T) {
	l := newLeaving()
	web1, other := catalog.Key{Namespace: "ns", Name: "web"}, catalog.Key{Namespace: "ns", Name: "other"}
	now := time.Unix(1e9, 0)
	for _, tt := range []struct {
		name      string
		key       catalog.Key
		endpoints []string
		want      string
	}{
		{"none ends", web1, []string{"10.42.0.2@here", "10.42.0.3@here unready"}, "map[]"},
		{"one ends", web1, []string{"10.42.0.2@here ending", "10.42.0.3@here"}, "map[10.42.0.2:8080:1]"},
		{"it still does", web1, []string{"10.42.0.2@here ending", "10.42.0.4@here"}, "map[]"},
		{"another ends too", web1, []string{"10.42.0.2@here ending", "10.42.0.4@here ending"}, "map[10.42.0.4:8080:1]"},
		{"they are gone", web1, nil, "map[10.42.0.2:8080:2 10.42.0.4:8080:2]"},
		{"the address is another's, which ends", web1, []string{"10.42.0.2@here ending"}, "map[10.42.0.2:8080:1]"},
		{"of another Service too", other, []string{"10.42.0.2@here ending"}, "map[10.42.0.2:8080:1]"},
		{"no more of the first", web1, nil, "map[]"},
		{"nor of the other", other, nil, "map[10.42.0.2:8080:2]"},
	} {
		l.note(catalog.Changes{Services: map[catalog.Key]catalog.Service{tt.key: behind(web(), tt.endpoints...)}}, now)
		if early := l.take(now.Add(landed - 1)); len(early) > 0 {
			t.Errorf("%s: too early: %v", tt.name, early)
		}
		now = now.Add(landed)
		if got := fmt.Sprint(l.take(now)); got != tt.want {
			t.Errorf("%s: due %v, want %v", tt.name, got, tt.want)
		}
	}
	l.note(catalog.Changes{Services: map[catalog.Key]catalog.Service{web1: behind(web(), "10.42.0.2@here ending")}}, now)
	l.note(catalog.Changes{Services: map[catalog.Key]catalog.Service{web1: {}}}, now)
	if got := fmt.Sprint(l.take(now.Add(landed))); got != "map[10.42.0.2:8080:1]" {
		t.Errorf("a Service that goes while its Pod still ends: due %v", got)
	}
	l.note(catalog.Changes{Services: map[catalog.Key]catalog.Service{web1: behind(web(protocolOf(v1.ProtocolUDP)), "10.42.0.7@here ending")}}, now)
	if due := l.take(now.Add(landed)); len(due) > 0 {
		t.Errorf("UDP has no handshakes: due %v", due)
	}
}

// A client whose first packet found no answer is served by another endpoint when its own
// ends: it repeats the packet after a second.
func TestALostHandshakeFindsAnotherEndpoint(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.B, "b", 8080)
	p := l.proxy()
	p.set(behind(web(), "10.42.0.9@here")) // nobody
	type result struct {
		answer string
		err    error
	}
	answered := make(chan result, 1)
	go netlab.In(t, l.C, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", "10.43.0.10:80")
		if err != nil {
			answered <- result{err: err}
			return nil
		}
		defer conn.Close()
		answer, err := netlab.Ask(conn)
		answered <- result{answer, err}
		return nil
	})
	nobody := netip.MustParseAddrPort("10.42.0.9:8080")
	testkit.WaitFor(t, "the first packet", func() error { return p.hasFlow(nobody) })
	p.set(behind(web(), "10.42.0.9@here ending", "10.42.0.3@here"))
	forgotten, err := p.flows.forget(&stale{c: p.c, left: map[netip.AddrPort]forgettable{nobody: handshakes}}, p.c.families())
	if err != nil || forgotten != 1 {
		t.Errorf("%d flows forgotten, %v", forgotten, err)
	}
	if got := <-answered; got.err != nil || got.answer != "b 10.42.0.4" {
		t.Errorf("answered %q, %v", got.answer, got.err)
	}
}

// A client that uses a port again does not follow the flow that the port had before to
// an endpoint that is gone.
func TestAPortUsedAgainFindsAnotherEndpoint(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.A, "a", 8080)
	l.Serve(l.B, "b", 8080)
	p := l.proxy()
	p.set(behind(web(), "10.42.0.2@here"))
	dialer := net.Dialer{Timeout: netlab.Patience, LocalAddr: &net.TCPAddr{Port: 41234}}
	ask := func() (answer string) {
		netlab.In(t, l.C, func() error {
			conn, err := dialer.Dial("tcp", "10.43.0.10:80")
			if err != nil {
				answer = netlab.Short(err)
				return nil
			}
			defer conn.Close()
			if answer, err = netlab.Ask(conn); err != nil {
				answer = netlab.Short(err)
			}
			return conn.(*net.TCPConn).SetLinger(0) // the port is free at once
		})
		return answer
	}
	if first := ask(); first[:1] != "a" {
		t.Fatal(first)
	}
	p.set(behind(web(), "10.42.0.3@here"))
	gone := netip.MustParseAddrPort("10.42.0.2:8080")
	forgotten, err := p.flows.forget(&stale{c: p.c, left: map[netip.AddrPort]forgettable{gone: allFlows}}, p.c.families())
	if err != nil || forgotten != 1 {
		t.Errorf("%d flows forgotten, %v", forgotten, err)
	}
	if again := ask(); again[:1] != "b" {
		t.Errorf("answered %q", again)
	}
}

// A first packet that comes to an endpoint that has just stopped listening, because it
// ends, is not refused: the client repeats it, and by then there are others.
func TestAnEndingEndpointRefusesNobody(t *testing.T) {
	l := newLab(t, true)
	l.Serve(l.B, "b", 8080)
	p := l.proxy()
	p.set(behind(web(), "10.42.0.2@here")) // which does not listen
	if got := l.Get(l.C, "tcp", "10.43.0.10:80"); got != "refused" {
		t.Errorf("one that does not end: %s", got)
	}
	p.set(behind(web(), "10.42.0.2@here ending"))
	if got := l.GetFor(l.C, "tcp", "10.43.0.10:80", netlab.Impatience); got != "silence" {
		t.Errorf("one that ends: %s", got)
	}
	if got := l.Get(l.C, "tcp", "10.42.0.2:8080"); got != "refused" {
		t.Errorf("past the Service: %s", got)
	}
}

// hasFlow is nil when there is an unfinished handshake with the endpoint.
func (p *proxied) hasFlow(with netip.AddrPort) error {
	if err := p.flows.conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	all, err := p.flows.conn.Execute(request(ctGet, mdnetlink.Dump, IPv4, nil))
	if err != nil {
		return err
	}
	for _, message := range all {
		if f, ok := parseFlow(message.Data); ok && f.from == with && !f.connected {
			return nil
		}
	}
	return errors.New("no flow to it")
}

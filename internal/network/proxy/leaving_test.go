package proxy

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	v1 "k8s.io/api/core/v1"

	"mend/internal/network/catalog"
	"mend/internal/network/netlab"
	"mend/internal/testkit"
)

func TestEndpointsThatBeginToEndAreDueOnce(t *testing.T) {
	l := newLeaving()
	key := catalog.Key{Namespace: "ns", Name: "web"}
	for _, tt := range []struct {
		name      string
		endpoints []string
		want      []string
	}{
		{"none ends", []string{"10.42.0.2@here", "10.42.0.3@here unready"}, nil},
		{"one ends", []string{"10.42.0.2@here ending", "10.42.0.3@here"}, []string{"10.42.0.2:8080"}},
		{"it still does", []string{"10.42.0.2@here ending", "10.42.0.4@here"}, nil},
		{"another ends too", []string{"10.42.0.2@here ending", "10.42.0.4@here ending"}, []string{"10.42.0.4:8080"}},
		{"they are gone", nil, nil},
		{"the address is another's, which ends", []string{"10.42.0.2@here ending"}, []string{"10.42.0.2:8080"}},
	} {
		l.note(catalog.Changes{Services: map[catalog.Key]catalog.Service{key: behind(web(), tt.endpoints...)}})
		var got []string
		for _, at := range slices.SortedFunc(maps.Keys(l.take()), netip.AddrPort.Compare) {
			got = append(got, at.String())
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: due %v, want %v", tt.name, got, tt.want)
		}
	}
	l.note(catalog.Changes{Services: map[catalog.Key]catalog.Service{key: behind(web(protocolOf(v1.ProtocolUDP)), "10.42.0.7@here ending")}})
	if due := l.take(); len(due) > 0 {
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
	testkit.WaitFor(t, "the first packet", func() error {
		all, err := p.flows.conn.Execute(request(ctGet, mdnetlink.Dump, IPv4, nil))
		if err != nil {
			return err
		}
		for _, message := range all {
			if f, ok := parseFlow(message.Data); ok && f.from == nobody && !f.answered {
				return nil
			}
		}
		return errors.New("no flow to it")
	})
	p.set(behind(web(), "10.42.0.9@here ending", "10.42.0.3@here"))
	forgotten, err := p.flows.forget(&stale{c: p.c, left: map[netip.AddrPort]bool{nobody: true}}, p.c.families())
	if err != nil || forgotten != 1 {
		t.Errorf("%d flows forgotten, %v", forgotten, err)
	}
	if got := <-answered; got.err != nil || got.answer != "b 10.42.0.4" {
		t.Errorf("answered %q, %v", got.answer, got.err)
	}
}

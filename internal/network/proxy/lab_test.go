package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"mend/internal/network/catalog"
	"mend/internal/network/netlab"
)

// lab is a netlab with a proxy in its node.
type lab struct {
	*netlab.Lab
	t testing.TB
}

func newLab(t testing.TB, routed bool) *lab { return &lab{netlab.New(t, routed), t} }

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
	netlab.In(l.t, l.Node, func() (err error) {
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

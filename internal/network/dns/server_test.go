package dns

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// running is a program in this process.
type running struct {
	conn   net.Conn
	encode *json.Encoder
	decode *json.Decoder
	listen netip.AddrPort
	ended  chan error
}

func launch(t *testing.T, socket string) *running {
	t.Helper()
	resolver, _ := upstream(t)
	host, _, _ := net.SplitHostPort(resolver) // forwarding is tested elsewhere
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+host+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{ended: make(chan error, 1)}
	go func() {
		r.ended <- Run(ctx, Options{Zone: "cluster.local", Address: netip.MustParseAddr("127.0.0.1"), Ports: []uint16{0}, Socket: socket, Resolvers: conf}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(cancel)
	return r
}

func (r *running) connect(t *testing.T, socket string) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			r.conn, r.encode, r.decode = conn, json.NewEncoder(conn), json.NewDecoder(conn)
			var hello Hello
			if err := r.decode.Decode(&hello); err != nil || hello.PID != os.Getpid() {
				t.Fatal(hello, err)
			}
			t.Cleanup(func() { conn.Close() })
			return
		}
		select {
		case <-limit:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *running) tell(t *testing.T, b Batch) {
	t.Helper()
	var done Done
	if err := r.encode.Encode(b); err != nil {
		t.Fatal(err)
	}
	if err := r.decode.Decode(&done); err != nil || done.Version != b.Version {
		t.Fatalf("%v, %v", done, err)
	}
	if b.Full {
		r.listen = done.Listen
	}
}

func exchange(network string, at netip.AddrPort, name string, kind uint16) (*dns.Msg, error) {
	q := new(dns.Msg)
	q.SetQuestion(name, kind)
	m, _, err := (&dns.Client{Net: network, Timeout: 5 * time.Second}).Exchange(q, at.String())
	return m, err
}

func TestTheProgramAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	r := launch(t, socket)
	r.connect(t, socket)
	r.tell(t, world)
	many := Service{Key: Key{"default", "many"}}
	for i := range 100 {
		many.Endpoints = append(many.Endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 42, 1, byte(i + 1)})})
	}
	r.tell(t, Batch{Put: []Service{many}, Version: 2})
	for _, network := range []string{"udp", "tcp"} {
		m, err := exchange(network, r.listen, "web.default.svc.cluster.local.", dns.TypeA)
		if err != nil || len(m.Answer) != 1 || !m.Authoritative || !m.RecursionAvailable {
			t.Errorf("%s: %v, %v", network, m, err)
		}
		m, err = exchange(network, r.listen, "many.default.svc.cluster.local.", dns.TypeA)
		if err != nil || m.Truncated != (network == "udp") || network == "tcp" && len(m.Answer) != 100 {
			t.Errorf("%s: %d answers, truncated %v, %v", network, len(m.Answer), m.Truncated, err)
		}
	}
	// Whoever fed it goes away; the view stays.
	r.conn.Close()
	if m, err := exchange("udp", r.listen, "web.default.svc.cluster.local.", dns.TypeA); err != nil || len(m.Answer) != 1 {
		t.Errorf("after the feeder went: %v, %v", m, err)
	}
	r.connect(t, socket)
	r.tell(t, Batch{Stop: true})
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestBadOptions(t *testing.T) {
	for _, args := range [][]string{{}, {"-address", "nonsense", "-socket", "s"}, {"-address", "10.0.0.1"},
		{"-address", "10.0.0.1", "-socket", "s", "-ports", "x"}, {"-nonsense"}} {
		if o, err := parse(args); err == nil {
			t.Errorf("%v: %v", args, o)
		}
	}
	want := Options{Zone: "z", Address: netip.MustParseAddr("10.0.0.1"), Ports: []uint16{53, 0}, Socket: "/s", Resolvers: "/r", Build: "b"}
	if got, err := parse(want.Args()); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v", got, err)
	}
}

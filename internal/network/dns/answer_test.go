package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// world is a view of some Services.
var world = Batch{Full: true, Version: 1, Put: []Service{
	{Key: Key{"default", "kubernetes"}, Addresses: addrs("10.43.0.1"), Ports: []Port{{"https", "tcp", 443}}},
	{Key: Key{"default", "web"}, Addresses: addrs("10.43.0.10", "fd43::a"), Ports: []Port{{"http", "tcp", 80}, {"dns", "udp", 53}, {"", "tcp", 9}}},
	{Key: Key{"default", "db"}, Endpoints: []Endpoint{
		{Address: netip.MustParseAddr("10.42.0.2"), Hostname: "db-0", Ports: []Port{{"sql", "tcp", 5432}}},
		{Address: netip.MustParseAddr("10.42.0.3"), Ports: []Port{{"sql", "tcp", 5432}}},
		{Address: netip.MustParseAddr("fd42::4"), Ports: []Port{{"sql", "tcp", 5432}}},
	}},
	{Key: Key{"default", "none"}},
	{Key: Key{"default", "out"}, External: "www.example.com"},
	{Key: Key{"default", "in"}, External: "web.default.svc.cluster.local"},
	{Key: Key{"other", "web"}, Addresses: addrs("10.43.0.20")},
}}

// upstream is a resolver that knows www.example.com and big.example.com, and counts.
func upstream(t *testing.T) (address string, asked *atomic.Int64) {
	t.Helper()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", packets.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	asked = &atomic.Int64{}
	mux := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(q)
		name := strings.ToLower(q.Question[0].Name)
		record := func(text string) {
			rr, err := dns.NewRR(q.Question[0].Name + " 60 IN " + text)
			if err != nil {
				t.Error(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		_, udp := w.RemoteAddr().(*net.UDPAddr)
		switch {
		case name == "www.example.com." && q.Question[0].Qtype == dns.TypeA:
			record("A 203.0.113.1")
		case name == "www.example.com.":
		case name == "big.example.com." && udp:
			m.Truncated = true
		case name == "big.example.com.":
			for i := range 100 {
				record(fmt.Sprintf("A 203.0.113.%d", i+1))
			}
		case name == "broken.example.com.":
			m.Rcode = dns.RcodeServerFailure
		default:
			m.Rcode = dns.RcodeNameError
			soa, _ := dns.NewRR("example.com. 60 IN SOA a. b. 1 2 3 4 5")
			m.Ns = []dns.RR{soa}
		}
		if err := w.WriteMsg(m); err != nil {
			t.Error(err)
		}
	})
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: mux}, {Listener: listener, Handler: mux}} {
		go server.ActivateAndServe()
		t.Cleanup(func() { server.Shutdown() })
	}
	return packets.LocalAddr().String(), asked
}

// newHandler answers from world, and forwards to upstream.
func newHandler(t *testing.T) (*handler, *atomic.Int64) {
	t.Helper()
	address, asked := upstream(t)
	h := &handler{answerer: answerer{zone: "cluster.local.", view: newView(), self: addrs("10.42.0.1")},
		forward: newForwarder("", nil), cache: newCache(), log: slog.New(slog.DiscardHandler)}
	h.forward.resolvers, h.forward.read = []string{address}, time.Now().Add(time.Hour)
	h.view.apply(world)
	return h, asked
}

// ask asks "name [type]" and prints the answer's records.
func ask(h *handler, text string) string {
	name, kind, typed := strings.Cut(text, " ")
	if !typed {
		kind = "A"
	}
	q := new(dns.Msg)
	q.SetQuestion(name, dns.StringToType[kind])
	m := h.answer(context.Background(), q, false)
	var all []string
	for _, rr := range m.Answer {
		all = append(all, strings.Join(strings.Fields(strings.TrimPrefix(rr.String(), rr.Header().String())), " "))
		if rr.Header().Name != name && rr.Header().Rrtype != dns.TypeA {
			all = append(all, "for "+rr.Header().Name)
		}
	}
	slices.Sort(all)
	out := strings.Join(all, ", ")
	switch {
	case m.Rcode != dns.RcodeSuccess:
		return strings.TrimSpace(dns.RcodeToString[m.Rcode] + " " + out)
	case out == "":
		return "nothing"
	}
	return out
}

// answers are questions to world and their answers.
var answers = [][2]string{
	{"web.default.svc.cluster.local.", "10.43.0.10"},
	{"web.default.svc.cluster.local. AAAA", "fd43::a"},
	{"WEB.Default.svc.cluster.LOCAL.", "10.43.0.10"},
	{"web.other.svc.cluster.local.", "10.43.0.20"},
	{"web.other.svc.cluster.local. AAAA", "nothing"},
	{"web.default.svc.cluster.local. TXT", "nothing"},
	{"nobody.default.svc.cluster.local.", "NXDOMAIN"},
	{"web.nowhere.svc.cluster.local.", "NXDOMAIN"},
	{"default.svc.cluster.local.", "nothing"},
	{"nowhere.svc.cluster.local.", "NXDOMAIN"},
	{"svc.cluster.local.", "nothing"},
	{"cluster.local.", "nothing"},
	{"x.cluster.local.", "NXDOMAIN"},
	{"www.example.com.default.svc.cluster.local.", "NXDOMAIN"},

	{"_http._tcp.web.default.svc.cluster.local. SRV", "0 100 80 web.default.svc.cluster.local."},
	{"_dns._udp.web.default.svc.cluster.local. SRV", "0 100 53 web.default.svc.cluster.local."},
	{"_dns._tcp.web.default.svc.cluster.local. SRV", "NXDOMAIN"},
	{"_http._tcp.web.default.svc.cluster.local.", "nothing"},
	{"_tcp.web.default.svc.cluster.local. SRV", "nothing"},
	{"_sctp.web.default.svc.cluster.local. SRV", "NXDOMAIN"},
	{"web.default.svc.cluster.local. SRV", "0 50 53 web.default.svc.cluster.local., 0 50 80 web.default.svc.cluster.local."},

	{"db.default.svc.cluster.local.", "10.42.0.2, 10.42.0.3"},
	{"db.default.svc.cluster.local. AAAA", "fd42::4"},
	{"db-0.db.default.svc.cluster.local.", "10.42.0.2"},
	{"10-42-0-3.db.default.svc.cluster.local.", "10.42.0.3"},
	{"fd42--4.db.default.svc.cluster.local. AAAA", "fd42::4"},
	{"10-42-0-2.db.default.svc.cluster.local.", "NXDOMAIN"},
	{"x.db-0.db.default.svc.cluster.local.", "NXDOMAIN"},
	{"db-0.db.default.svc.cluster.local. SRV", "0 100 5432 db-0.db.default.svc.cluster.local."},
	{"_sql._tcp.db.default.svc.cluster.local. SRV", "0 33 5432 10-42-0-3.db.default.svc.cluster.local., " +
		"0 33 5432 db-0.db.default.svc.cluster.local., 0 33 5432 fd42--4.db.default.svc.cluster.local."},
	{"none.default.svc.cluster.local.", "NXDOMAIN"},

	{"out.default.svc.cluster.local. CNAME", "www.example.com."},
	{"out.default.svc.cluster.local.", "203.0.113.1, www.example.com."},
	{"out.default.svc.cluster.local. AAAA", "www.example.com."},
	{"x.out.default.svc.cluster.local.", "NXDOMAIN"},
	{"in.default.svc.cluster.local.", "10.43.0.10, web.default.svc.cluster.local."},

	{"10-42-0-9.default.pod.cluster.local.", "10.42.0.9"},
	{"fd42--9.default.pod.cluster.local. AAAA", "fd42::9"},
	{"nonsense.default.pod.cluster.local.", "NXDOMAIN"},
	{"pod.cluster.local.", "nothing"},

	{"10.0.43.10.in-addr.arpa. PTR", "web.default.svc.cluster.local."},
	{"10.0.43.10.in-addr.arpa.", "NXDOMAIN"},
	{"1.0.43.10.in-addr.arpa. PTR", "kubernetes.default.svc.cluster.local."},
	{"2.0.42.10.in-addr.arpa. PTR", "db-0.db.default.svc.cluster.local."},
	{"a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.4.d.f.ip6.arpa. PTR", "web.default.svc.cluster.local."},

	{"dns-version.cluster.local. TXT", `"1.1.0"`},
	{"ns.dns.cluster.local.", "10.42.0.1"},
	{"cluster.local. NS", "ns.dns.cluster.local."},

	{"www.example.com.", "203.0.113.1"},
	{"www.example.com. AAAA", "nothing"},
	{"nothing.example.com.", "NXDOMAIN"},
	{"broken.example.com.", "SERVFAIL"},
	{"cluster.local. AXFR", "REFUSED"},
}

func TestAnswers(t *testing.T) {
	h, _ := newHandler(t)
	for _, tt := range answers {
		if got := ask(h, tt[0]); got != tt[1] {
			t.Errorf("%s: %s, want %s", tt[0], got, tt[1])
		}
	}
}

func TestTheViewChanges(t *testing.T) {
	h, _ := newHandler(t)
	h.view.apply(Batch{Put: []Service{{Key: Key{"default", "web"}, Addresses: addrs("10.43.0.11")}, {Key: Key{"new", "web"}, Addresses: addrs("10.43.0.12")}}})
	for question, want := range map[string]string{
		"web.default.svc.cluster.local.":        "10.43.0.11",
		"web.new.svc.cluster.local.":            "10.43.0.12",
		"11.0.43.10.in-addr.arpa. PTR":          "web.default.svc.cluster.local.",
		"10.0.43.10.in-addr.arpa. PTR":          "NXDOMAIN",
		"kubernetes.default.svc.cluster.local.": "10.43.0.1",
	} {
		if got := ask(h, question); got != want {
			t.Errorf("%s: %s, want %s", question, got, want)
		}
	}
	h.view.apply(Batch{Delete: []Key{{"new", "web"}, {"none", "none"}}})
	if got := ask(h, "new.svc.cluster.local."); got != "NXDOMAIN" {
		t.Errorf("a namespace without Services: %s", got)
	}
	h.view.apply(Batch{Full: true})
	if got := ask(h, "web.default.svc.cluster.local."); got != "NXDOMAIN" {
		t.Errorf("after an empty view: %s", got)
	}
}

func TestBeforeTheFirstView(t *testing.T) {
	h, _ := newHandler(t)
	h.view = newView()
	h.answerer.view = h.view
	for question, want := range map[string]string{
		"web.default.svc.cluster.local.": "SERVFAIL", "www.example.com.": "203.0.113.1", "dns-version.cluster.local. TXT": `"1.1.0"`,
	} {
		if got := ask(h, question); got != want {
			t.Errorf("%s: %s, want %s", question, got, want)
		}
	}
}

func TestNegativeAnswersSayForHowLong(t *testing.T) {
	h, _ := newHandler(t)
	for _, name := range []string{"nobody.default.svc.cluster.local.", "svc.cluster.local."} {
		q := new(dns.Msg)
		q.SetQuestion(name, dns.TypeA)
		m := h.answer(t.Context(), q, false)
		if len(m.Ns) != 1 || m.Ns[0].(*dns.SOA).Minttl != ttl || !m.Authoritative {
			t.Errorf("%s: %v", name, m)
		}
	}
}

func TestForwardedAnswersAreKept(t *testing.T) {
	h, asked := newHandler(t)
	for range 5 {
		for name, want := range map[string]string{"www.example.com.": "203.0.113.1", "WWW.example.com.": "203.0.113.1", "nothing.example.com.": "NXDOMAIN"} {
			if got := ask(h, name); got != want {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the resolver was asked %d times", n)
	}
	before := asked.Load()
	for range 2 {
		ask(h, "broken.example.com.")
	}
	if asked.Load() == before {
		t.Error("a failure was kept")
	}
	now := time.Now()
	c := newCache()
	m := new(dns.Msg)
	m.SetQuestion("a.", dns.TypeA)
	rr, _ := dns.NewRR("a. 100 IN A 203.0.113.1")
	m.Answer = []dns.RR{rr}
	c.put(keyOf(m, false), m, now)
	if got := c.get(keyOf(m, false), now.Add(20*time.Second)); got == nil || got.Answer[0].Header().Ttl != 80 {
		t.Errorf("after 20 s: %v", got)
	}
	if got := c.get(keyOf(m, false), now.Add(31*time.Second)); got != nil {
		t.Errorf("after 31 s: %v", got)
	}
}

// A resolver that does not answer costs one client one attempt.
func TestADeadResolverIsLeftAside(t *testing.T) {
	h, _ := newHandler(t)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	h.forward.resolvers = append(h.forward.resolvers, silent.LocalAddr().String())
	slow := 0
	for i := range 20 {
		start := time.Now()
		q := new(dns.Msg)
		q.SetQuestion(fmt.Sprintf("x%d.example.com.", i), dns.TypeA)
		if m := h.answer(t.Context(), q, false); m.Rcode != dns.RcodeNameError {
			t.Fatalf("answered %v", m)
		}
		if time.Since(start) > attemptLimit/2 {
			slow++
		}
	}
	if slow > 2 {
		t.Errorf("%d of 20 were slow", slow)
	}
}

func TestResolversFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := newForwarder(path, addrs("10.42.0.1"))
	if got := f.list(); len(got) != 0 {
		t.Errorf("without a file: %v", got)
	}
	write("nameserver 10.42.0.1\nnameserver 192.0.2.1\nsearch x\n")
	f.read = time.Time{}
	if got := f.list(); !slices.Equal(got, []string{"192.0.2.1:53"}) {
		t.Errorf("read %v", got)
	}
	if _, err := newForwarder("/nonexistent", nil).ask(t.Context(), new(dns.Msg), false); err == nil {
		t.Error("no resolver, and no error")
	}
}

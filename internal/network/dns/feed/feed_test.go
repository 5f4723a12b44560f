package feed

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	miekg "github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"mend/internal/network/catalog"
	"mend/internal/network/dns"
	"mend/internal/testkit"
)

// The test's own program is the DNS program when it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == dns.Command {
		os.Exit(dns.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// world is an API server and the feed of a real program.
type world struct {
	*testing.T
	client kubernetes.Interface
	runDir string
	at     netip.AddrPort // where the program answers
	stop   func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "feed") // short: a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, client: testkit.StartAPIServer(t).Client, runDir: dir, stop: func() {}}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.at = netip.MustParseAddrPort(free.Addr().String())
	free.Close()
	t.Cleanup(func() {
		w.stop()
		if err := Stop(dir); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	w.service("web")
	return w
}

// run runs a feed of a program, as a mend does. Programs of different names are of
// different makes.
func (w *world) run(program string) {
	w.Helper()
	w.stop()
	self, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	link := filepath.Join(w.runDir, program)
	if err := os.Symlink(self, link); err != nil && !os.IsExist(err) {
		w.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := catalog.New()
	listening := make(chan netip.AddrPort, 10)
	f, err := New(Config{Command: []string{link, dns.Command}, RunDir: w.runDir, Zone: "cluster.local", Address: netip.MustParseAddr("127.0.0.1"),
		Ports: []uint16{w.at.Port()}, Resolvers: os.DevNull, Catalog: c, Log: log, Listening: func(at netip.AddrPort) { listening <- at }})
	if err != nil {
		w.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx, w.client, log) })
	running.Go(func() { f.Run(ctx) })
	var once sync.Once
	w.stop = func() { once.Do(func() { cancel(); running.Wait() }) }
	select {
	case at := <-listening:
		if at != w.at {
			w.Fatalf("answers at %v, want %v", at, w.at)
		}
	case <-time.After(30 * time.Second):
		w.Fatal("the program does not come up")
	}
}

func (w *world) service(name string) *v1.Service {
	w.Helper()
	s, err := w.client.CoreV1().Services("default").Create(w.Context(), &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// ask returns what a Service's name is answered.
func (w *world) ask(service string) (string, error) {
	q := new(miekg.Msg)
	q.SetQuestion(service+".default.svc.cluster.local.", miekg.TypeA)
	m, _, err := (&miekg.Client{Timeout: 5 * time.Second}).Exchange(q, w.at.String())
	if err != nil {
		return "", err
	}
	if len(m.Answer) == 0 {
		return miekg.RcodeToString[m.Rcode], nil
	}
	return m.Answer[0].(*miekg.A).A.String(), nil
}

func (w *world) answers(what, service, want string) {
	w.Helper()
	testkit.WaitFor(w, what, func() error {
		if got, err := w.ask(service); err != nil || got != want {
			return fmt.Errorf("%s, %w", got, err)
		}
		return nil
	})
}

// pid is that of the program that listens.
func (w *world) pid() int {
	w.Helper()
	p, err := connect(Config{RunDir: w.runDir}.socket())
	if err != nil {
		w.Fatal(err)
	}
	defer p.close()
	return p.hello.PID
}

func TestTheProgramFollowsTheAPI(t *testing.T) {
	w := newWorld(t)
	w.run("one")
	s, err := w.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.answers("a Service from before", "web", s.Spec.ClusterIP)
	w.answers("a new Service", "new", "NXDOMAIN")
	w.answers("a new Service", "new", w.service("new").Spec.ClusterIP)
	if err := w.client.CoreV1().Services("default").Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.answers("a gone Service", "new", "NXDOMAIN")
}

// While mend is down the program answers; the next mend takes it up, and tells it what it
// missed.
func TestTheProgramOutlivesMend(t *testing.T) {
	w := newWorld(t)
	w.run("one")
	first := w.pid()
	ip, _ := w.ask("web")
	w.stop()
	if got, err := w.ask("web"); err != nil || got != ip {
		t.Errorf("without mend: %s, %v, want %s", got, err, ip)
	}
	missed := w.service("missed").Spec.ClusterIP
	if err := w.client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.run("one")
	if got := w.pid(); got != first {
		t.Errorf("another program runs: %d, before %d", got, first)
	}
	w.answers("what came meanwhile", "missed", missed)
	w.answers("what went meanwhile", "web", "NXDOMAIN")
}

// A newer program takes over under questions; none is lost.
func TestANewerProgramTakesOver(t *testing.T) {
	w := newWorld(t)
	w.run("one")
	ip, _ := w.ask("web")
	stop, failed := make(chan struct{}), make(chan string, 10000)
	var clients sync.WaitGroup
	asked := make(chan int, 3)
	for range 3 {
		clients.Go(func() {
			n := 0
			defer func() { asked <- n }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := w.ask("web"); err != nil || got != ip {
					failed <- fmt.Sprint(got, err)
				}
				n++
			}
		})
	}
	pids := map[int]bool{w.pid(): true}
	for i := range 4 {
		w.run(fmt.Sprintf("newer-%d", i))
		pids[w.pid()] = true
	}
	close(stop)
	clients.Wait()
	close(failed)
	total := <-asked + <-asked + <-asked
	if len(pids) != 5 {
		t.Errorf("%d programs ran, want 5", len(pids))
	}
	for why := range failed {
		t.Errorf("of %d questions: %s", total, why)
	}
	t.Logf("%d questions", total)
}

// A program that is killed is started again.
func TestAKilledProgramComesBack(t *testing.T) {
	w := newWorld(t)
	w.run("one")
	ip, _ := w.ask("web")
	first := w.pid()
	p, err := os.FindProcess(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "another program", func() error {
		p, err := connect(Config{RunDir: w.runDir}.socket())
		if err != nil {
			return err
		}
		defer p.close()
		if p.hello.PID == first {
			return fmt.Errorf("still %d", first)
		}
		return nil
	})
	w.answers("the new one", "web", ip)
}

func TestStopLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.run("one")
	pid := w.pid()
	w.stop()
	for range 2 {
		if err := Stop(w.runDir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(w.runDir, "dns.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	testkit.WaitFor(t, "the process to go", func() error {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(state), ") Z ") {
			return fmt.Errorf("still there: %s", state)
		}
		return nil
	})
}

func TestAProgramThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Command: []string{self, dns.Command}, RunDir: dir, Zone: "z", Address: netip.MustParseAddr("127.0.0.1"),
		Ports: []uint16{netip.MustParseAddrPort(taken.Addr().String()).Port()}}
	o, err := c.options()
	if err != nil {
		t.Fatal(err)
	}
	p, err := start(t.Context(), c.Command, o, c.logFile(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.tell(dns.Batch{Full: true}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v", err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	o.Socket = "/nonexistent/socket"
	if _, err := start(t.Context(), c.Command, o, c.logFile(), nil); err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
	c.Command[0] = filepath.Join(dir, "nothing")
	if _, err := c.options(); err == nil {
		t.Error("no error for a program that is not there")
	}
}

func TestRecords(t *testing.T) {
	port := v1.ServicePort{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}
	slice := &discovery.EndpointSlice{
		Ports: []discovery.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To[int32](8080)}, {}},
		Endpoints: []discovery.Endpoint{
			{Addresses: []string{"10.42.0.3"}, Hostname: ptr.To("three")},
			{Addresses: []string{"10.42.0.2"}, Conditions: discovery.EndpointConditions{Ready: ptr.To(true)}},
			{Addresses: []string{"10.42.0.4"}, Conditions: discovery.EndpointConditions{Ready: ptr.To(false)}},
			{Addresses: []string{"name.example.com"}}, {},
		},
	}
	ports := []dns.Port{{Name: "http", Protocol: "tcp", Port: 8080}}
	for _, tt := range []struct {
		name string
		spec v1.ServiceSpec
		want dns.Service
	}{
		{"ClusterIP", v1.ServiceSpec{ClusterIP: "10.43.0.1", ClusterIPs: []string{"10.43.0.1", "fd43::1"}, Ports: []v1.ServicePort{port}},
			dns.Service{Addresses: []netip.Addr{netip.MustParseAddr("10.43.0.1"), netip.MustParseAddr("fd43::1")}, Ports: []dns.Port{{Name: "http", Protocol: "tcp", Port: 80}}}},
		{"ExternalName", v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "WWW.example.com"}, dns.Service{External: "www.example.com"}},
		{"headless", v1.ServiceSpec{ClusterIP: v1.ClusterIPNone, Ports: []v1.ServicePort{port}}, dns.Service{Endpoints: []dns.Endpoint{
			{Address: netip.MustParseAddr("10.42.0.2"), Ports: ports}, {Address: netip.MustParseAddr("10.42.0.3"), Hostname: "three", Ports: ports}}}},
	} {
		got := record(catalog.Service{Object: &v1.Service{Spec: tt.spec}, Slices: []*discovery.EndpointSlice{slice, slice}})
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	b := batch(catalog.Changes{Version: 7, Services: map[catalog.Key]catalog.Service{{Namespace: "a", Name: "gone"}: {}}})
	if diff := cmp.Diff(dns.Batch{Version: 7, Delete: []dns.Key{{Namespace: "a", Name: "gone"}}}, b, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
}

func TestPublishing(t *testing.T) {
	client := testkit.StartAPIServer(t).Client
	p := Publication{Node: "here", ClusterIP: netip.MustParseAddr("10.96.0.10"), At: netip.MustParseAddrPort("10.42.0.1:53")}
	for _, port := range []string{"10.42.0.1:53", "10.42.0.1:53", "10.42.0.1:10053"} {
		p.At = netip.MustParseAddrPort(port)
		if err := p.Publish(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	other := Publication{Node: "there", ClusterIP: p.ClusterIP, At: netip.MustParseAddrPort("10.42.1.1:53")}
	if err := other.Publish(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	s, err := client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil || s.Spec.ClusterIP != "10.96.0.10" || len(s.Spec.Ports) != 2 {
		t.Errorf("%v, %v", s, err)
	}
	all, err := client.DiscoveryV1().EndpointSlices("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kube-dns"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, slice := range all.Items {
		got[*slice.Endpoints[0].NodeName] = fmt.Sprintf("%s:%d", slice.Endpoints[0].Addresses[0], *slice.Ports[0].Port)
	}
	if diff := cmp.Diff(map[string]string{"here": "10.42.0.1:10053", "there": "10.42.1.1:53"}, got); diff != "" {
		t.Error(diff)
	}
}

package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"mend/internal/network/catalog"
	"mend/internal/network/netlab"
	"mend/internal/testkit"
)

// run runs a proxy in the lab's node on what an API server says, until stop is called.
func (l *lab) run(client kubernetes.Interface) (programmed *atomic.Uint64, stop func()) {
	l.t.Helper()
	programmed = &atomic.Uint64{}
	c := l.config()
	c.Programmed = func(version uint64) { programmed.Store(version) }
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Catalog.Run(ctx, client, c.Log) })
	running.Go(func() {
		netlab.In(l.t, l.Node, func() error {
			p, err := New(c)
			if err != nil {
				return err
			}
			p.checkEvery = 20 * time.Millisecond
			p.Run(ctx)
			return nil
		})
	})
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); running.Wait() }) }
	l.t.Cleanup(stop)
	return programmed, stop
}

// cluster is a Service default/web on a real API server.
type cluster struct {
	t      *testing.T
	client kubernetes.Interface
	slice  *discovery.EndpointSlice
}

func newCluster(t *testing.T, change ...func(*v1.Service)) *cluster {
	t.Helper()
	c := &cluster{t: t, client: testkit.StartAPIServer(t).Client}
	s := web(change...)
	s.Namespace, s.Spec.ClusterIP, s.Spec.ClusterIPs = "default", "", nil
	c.service(s)
	one := slice(v1.ProtocolTCP)
	one.Namespace = "default"
	var err error
	if c.slice, err = client(c).Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func client(c *cluster) interface {
	Create(context.Context, *discovery.EndpointSlice, metav1.CreateOptions) (*discovery.EndpointSlice, error)
	Update(context.Context, *discovery.EndpointSlice, metav1.UpdateOptions) (*discovery.EndpointSlice, error)
} {
	return c.client.DiscoveryV1().EndpointSlices("default")
}

func (c *cluster) service(s *v1.Service) *v1.Service {
	c.t.Helper()
	status := s.Status
	made, err := c.client.CoreV1().Services("default").Create(c.t.Context(), s, metav1.CreateOptions{})
	if err == nil && len(status.LoadBalancer.Ingress) > 0 {
		for i := range status.LoadBalancer.Ingress {
			status.LoadBalancer.Ingress[i].IPMode = ptr.To(v1.LoadBalancerIPModeVIP)
		}
		made.Status = status
		made, err = c.client.CoreV1().Services("default").UpdateStatus(c.t.Context(), made, metav1.UpdateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return made
}

// ip is the Service's address and port.
func (c *cluster) ip() string {
	c.t.Helper()
	s, err := c.client.CoreV1().Services("default").Get(c.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return s.Spec.ClusterIP + ":80"
}

// endpoints replaces the endpoints and returns the version of that.
func (c *cluster) endpoints(all ...string) uint64 {
	c.t.Helper()
	c.slice = c.slice.DeepCopy()
	c.slice.Endpoints = slice(v1.ProtocolTCP, all...).Endpoints
	var err error
	if c.slice, err = client(c).Update(c.t.Context(), c.slice, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	version, err := strconv.ParseUint(c.slice.ResourceVersion, 10, 64)
	if err != nil {
		c.t.Fatal(err)
	}
	return version
}

func waitFor(t *testing.T, programmed *atomic.Uint64, version uint64) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprintf("version %d to be programmed", version), func() error {
		if got := programmed.Load(); got < version {
			return fmt.Errorf("at %d", got)
		}
		return nil
	})
}

// What is said to be programmed is in the kernel: packets go there from then on.
func TestProgrammedMeansProgrammed(t *testing.T) {
	l, c := newLab(t, true), newCluster(t)
	l.Serve(l.A, "a", 8080)
	l.Serve(l.B, "b", 8080)
	programmed, _ := l.run(c.client)
	ip := c.ip()
	for i := range 20 {
		endpoint, want := "10.42.0.2@here", "a 10.42.0.4"
		if i%2 == 1 {
			endpoint, want = "10.42.0.3@here", "b 10.42.0.4"
		}
		waitFor(t, programmed, c.endpoints(endpoint))
		if got := l.Get(l.C, "tcp", ip); got != want {
			t.Fatalf("round %d: %s, want %s", i, got, want)
		}
	}
}

// Without mend all stays as it is; the next one finds what changed, and what was changed
// behind its back, and leaves the rest alone.
func TestARestartKeepsTheTable(t *testing.T) {
	l, c := newLab(t, true), newCluster(t, sticky(600))
	l.Serve(l.A, "a", 8080)
	l.Serve(l.B, "b", 8080)
	programmed, stop := l.run(c.client)
	ip := c.ip()
	waitFor(t, programmed, c.endpoints("10.42.0.2@here", "10.42.0.3@here"))
	first := l.Get(l.C, "tcp", ip)
	long, err := l.Dial(l.C, "tcp", ip)
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	stop()
	if got := l.Get(l.C, "tcp", ip); got != first {
		t.Errorf("without a proxy: %s, want %s", got, first)
	}
	extra := c.service(web(func(s *v1.Service) {
		s.Namespace, s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "default", "extra", "", nil
	}))
	netlab.In(t, l.Node, func() error {
		k, err := openKernel(l.config())
		if err != nil {
			return err
		}
		defer k.close()
		held, err := k.read()
		if err != nil {
			return err
		}
		var some Difference
		for s, value := range held {
			if s.set == setEndpoints || s.set == setHairpin {
				some.Delete = append(some.Delete, s.element(value))
			}
		}
		some.Add = []Element{{Family: IPv4, Set: setDrop, Key: packAddr(podOther) + packProtocol(TCP) + packPort(1)}}
		return k.commit(some)
	})
	programmed, stop = l.run(c.client)
	waitFor(t, programmed, c.endpoints("10.42.0.2@here", "10.42.0.3@here", "10.42.0.4@here"))
	for range 8 {
		if got := l.Get(l.C, "tcp", ip); got != first {
			t.Fatalf("after the restart: %s, want %s, which was remembered", got, first)
		}
	}
	if got := l.Get(l.C, "tcp", extra.Spec.ClusterIP+":80"); got != "refused" {
		t.Errorf("the Service made meanwhile: %s, want refused", got)
	}
	if answer, err := netlab.Ask(long); err != nil || answer != first {
		t.Errorf("the connection in flight got %q, %v", answer, err)
	}
	stop()
	if err := c.client.CoreV1().Services("default").Delete(t.Context(), "extra", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	programmed, _ = l.run(c.client)
	waitFor(t, programmed, c.endpoints("10.42.0.2@here"))
	netlab.In(t, l.Node, func() error { return l.check(c.client) })
}

// check compares the kernel with what a new ledger says of the API's Services.
func (l *lab) check(client kubernetes.Interface) error {
	p := &Proxy{c: l.config(), ledger: newLedger()}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go p.c.Catalog.Run(ctx, client, p.c.Log)
	f := p.c.Catalog.Follow()
	select {
	case <-f.Changed():
	case <-time.After(10 * time.Second):
		return errors.New("no Services")
	}
	changes, _ := f.Take()
	all := map[catalog.Key]Rendering{}
	for key, s := range changes.Services {
		all[key] = render(p.c, s)
	}
	p.ledger.change(all)
	k, err := openKernel(p.c)
	if err != nil {
		return err
	}
	defer k.close()
	p.kernel = k
	held, err := k.read()
	if err != nil {
		return err
	}
	return p.differs(held)
}

// differs says how the kernel differs from the ledger.
func (p *Proxy) differs(held map[slot]string) error {
	var wrong []string
	want := map[slot]string{}
	for _, e := range p.ledger.all() {
		want[e.slot()] = e.Value
		if got, ok := held[e.slot()]; !ok || got != e.Value {
			wrong = append(wrong, "lacks "+e.String())
		}
	}
	for s, value := range held {
		if _, ok := want[s]; !ok {
			wrong = append(wrong, "has "+s.element(value).String())
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the kernel\n%s", strings.Join(wrong, "\n"))
	}
	return nil
}

// Somebody flushes all rules of the machine; they come back by themselves.
func TestAFlushedTableComesBack(t *testing.T) {
	l, c := newLab(t, true), newCluster(t)
	l.Serve(l.A, "a", 8080)
	programmed, _ := l.run(c.client)
	ip := c.ip()
	waitFor(t, programmed, c.endpoints("10.42.0.2@here"))
	netlab.In(t, l.Node, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.FlushRuleset()
		return conn.Flush()
	})
	testkit.WaitFor(t, "the rules", func() error {
		if got := l.Get(l.C, "tcp", ip); got != "a 10.42.0.4" {
			return errors.New(got)
		}
		return nil
	})
}

// Two Services want one address and port with ranges that overlap, which the kernel
// does not take. One of them is left out; everything else works.
func TestAServiceThatTheKernelRefusesHurtsNoOther(t *testing.T) {
	l, c := newLab(t, true), newCluster(t)
	l.Serve(l.A, "a", 8080)
	programmed, stop := l.run(c.client)
	ip := c.ip()
	for name, ranges := range map[string]string{"one": "198.18.0.0/24", "two": "198.18.0.0/28"} {
		c.service(web(loadBalancer("198.18.0.1"), func(s *v1.Service) {
			s.Namespace, s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "default", name, "", nil
			s.Spec.LoadBalancerSourceRanges = []string{ranges}
		}))
	}
	waitFor(t, programmed, c.endpoints("10.42.0.2@here"))
	if got := l.Get(l.C, "tcp", ip); got != "a 10.42.0.4" {
		t.Errorf("web: %s", got)
	}
	stop()
	programmed, _ = l.run(c.client)
	waitFor(t, programmed, c.endpoints("10.42.0.2@here unready"))
	if got := l.Get(l.C, "tcp", ip); got != "refused" {
		t.Errorf("web without endpoints: %s", got)
	}
}

func TestHealthCheckPort(t *testing.T) {
	l, c := newLab(t, true), newCluster(t, loadBalancer(), externalLocal)
	programmed, _ := l.run(c.client)
	s, err := c.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		endpoints []string
		code      int
		text      string
	}{
		{[]string{"10.42.0.2@here", "10.42.0.3@here", "10.42.1.3@there", "10.42.0.4@here unready"}, 200, `"localEndpoints": 2`},
		{[]string{"10.42.1.3@there"}, 503, `"localEndpoints": 0`},
		{[]string{"10.42.0.2@here ending"}, 503, `"localEndpoints": 0`},
	} {
		waitFor(t, programmed, c.endpoints(tt.endpoints...))
		code, body := l.fetch(fmt.Sprintf("198.18.0.1:%d", s.Spec.HealthCheckNodePort))
		if code != tt.code || !strings.Contains(body, tt.text) {
			t.Errorf("%v: %d %s", tt.endpoints, code, body)
		}
	}
}

// fetch asks an HTTP server from outside.
func (l *lab) fetch(to string) (code int, body string) {
	l.t.Helper()
	conn, err := l.Dial(l.Outside, "tcp", to)
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.0\r\n\r\n"); err != nil {
		l.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		l.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestRemove(t *testing.T) {
	l := newLab(t, true)
	l.proxy().set(behind(web(), "10.42.0.2@here"))
	netlab.In(t, l.Node, func() error {
		if err := errors.Join(Remove(here.InstanceID), Remove(here.InstanceID)); err != nil {
			return err
		}
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		if len(tables) != 0 {
			t.Errorf("%d tables are left", len(tables))
		}
		return err
	})
}

func TestRemoveOfOneFamilyLeavesTheOther(t *testing.T) {
	l := newLab(t, true)
	l.proxy().set(behind(web(), "10.42.0.2@here"))
	netlab.In(t, l.Node, func() error {
		if err := Remove(here.InstanceID, IPv6); err != nil {
			return err
		}
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		if len(tables) != 1 || tables[0].Family != nftables.TableFamilyIPv4 {
			t.Errorf("left: %d tables, the first %+v", len(tables), tables[0])
		}
		return err
	})
}

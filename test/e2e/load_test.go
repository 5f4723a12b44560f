package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"mend/internal/network/families"
	"mend/internal/network/netlab"
)

// clientNet is a network namespace from which load comes, as from another machine:
//
//	[host] 198.19.77.1 ── 198.19.77.2 [client]
//
// The range is one that benchmarks reserve.
type clientNet struct{ ns netns.NsHandle }

// Two runs on a machine at once do not meet: the third byte and the middle of the fourth, and
// the name, follow from this process.
var (
	clientLink = fmt.Sprintf("mend-e2e-%d", clientNumber)
	clientHost = fmt.Sprintf("198.19.%d.%d/30", clientNumber>>6, clientNumber&63<<2+1)
	clientSelf = fmt.Sprintf("198.19.%d.%d/30", clientNumber>>6, clientNumber&63<<2+2)
	// The same where the machine has IPv6.
	clientHost6 = fmt.Sprintf("fd4d:454e:4477:%x::1/64", clientNumber)
	clientSelf6 = fmt.Sprintf("fd4d:454e:4477:%x::2/64", clientNumber)
)

var clientNumber = os.Getpid() % (1 << 14)

func newClientNet(t *testing.T) *clientNet {
	t.Helper()
	n := &clientNet{}
	netlab.In(t, netns.None(), func() (err error) { n.ns, err = netns.New(); return err })
	t.Cleanup(func() { _ = n.ns.Close() })
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: clientLink}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(n.ns))}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(netlab.SetAddress(clientLink, clientHost), netlab.SetUp(clientLink)); err != nil {
		t.Fatal(err)
	}
	netlab.In(t, n.ns, func() error {
		if err := errors.Join(netlab.SetUp("lo"), netlab.SetAddress("eth0", clientSelf), netlab.SetUp("eth0")); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: netip.MustParsePrefix(clientHost).Addr().AsSlice()})
	})
	if families.HasIPv6() {
		n.connect6(t)
	}
	return n
}

func (n *clientNet) connect6(t *testing.T) {
	t.Helper()
	if err := netlab.SetAddress(clientLink, clientHost6); err != nil {
		t.Fatal(err)
	}
	netlab.In(t, n.ns, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlab.SetAddress("eth0", clientSelf6), netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
			Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Gw: netip.MustParsePrefix(clientHost6).Addr().AsSlice()}))
	})
}

// dial connects from the namespace: a socket stays in the one that it was made in.
func (n *clientNet) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = netlab.Do(n.ns, func() (err error) {
		conn, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// failure is a request that got no good answer.
type failure struct {
	at   time.Time
	took time.Duration
	url  string
	err  error
}

// load asks URLs again and again, a quarter of the clients on a new connection for each
// request and the others on one that they keep.
type load struct {
	stop    context.CancelFunc
	clients sync.WaitGroup

	mu       sync.Mutex
	answers  map[string]int // by Pod
	total    int
	failures []failure
}

// askEvery paces each client: the ports of one that connects anew as fast as it can come
// round within the two minutes for which the kernels on the way remember a connection.
const askEvery = 10 * time.Millisecond

// requestLimit bounds one request. It is a failure, not a pause, when it is reached.
const requestLimit = 15 * time.Second

func (n *clientNet) load(clients int, urls ...string) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop, answers: map[string]int{}}
	for i := range clients {
		transport := &http.Transport{DialContext: n.dial, DisableKeepAlives: i%4 == 0, MaxIdleConnsPerHost: 1}
		url := urls[(i+i/4)%len(urls)]
		l.clients.Go(func() {
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: requestLimit}
			for tick := time.NewTicker(askEvery); ctx.Err() == nil; <-tick.C {
				l.ask(client, url)
			}
		})
	}
	return l
}

func (l *load) ask(client *http.Client, url string) {
	began := time.Now()
	pod, err := get(client, url)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failures = append(l.failures, failure{time.Now(), time.Since(began), url, err})
		return
	}
	l.total++
	l.answers[pod]++
}

// get asks the sample server; its answer ends with the name of its Pod.
func get(client *http.Client, url string) (pod string, err error) {
	answer, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	_, pod, found := strings.Cut(strings.TrimSpace(string(text)), " on ")
	if answer.StatusCode != http.StatusOK || !found {
		return "", fmt.Errorf("%s: %q", answer.Status, text)
	}
	return pod, nil
}

// count is how many requests were answered so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// by is how many requests a Pod answered so far.
func (l *load) by(pod string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answers[pod]
}

// end stops the clients and returns what failed.
func (l *load) end() []failure {
	l.stop()
	l.clients.Wait()
	return l.failures
}

// mustServe ends the load, none of which may have failed.
func (l *load) mustServe(t *testing.T, what string) {
	t.Helper()
	failures := l.end()
	t.Logf("%s: %d requests answered by %d Pods, %d failed", what, l.total, len(l.answers), len(failures))
	if len(failures) == 0 {
		return
	}
	var first []string
	for _, f := range failures[:min(5, len(failures))] {
		first = append(first, fmt.Sprintf("%s after %v: %v", f.at.Format("15:04:05.000"), f.took.Round(time.Millisecond), f.err))
	}
	t.Errorf("%s: %d of %d requests failed:\n%s\nPods: %v", what, len(failures), l.total+len(failures), strings.Join(first, "\n"),
		slices.Sorted(maps.Keys(l.answers)))
}

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/network/netlab"
	"mend/internal/testkit"
)

// load asks a Service again and again, on new connections from several clients, until
// stop is called, which says how many answers there were and how many failures.
func (n *nodeWorld) load(from netns.NsHandle, to string) (stop func() (answers int64, failures []error)) {
	ctx, cancel := context.WithCancel(n.ctx)
	var answers atomic.Int64
	failed := make(chan error, 100000)
	var clients errgroup.Group
	for range 3 {
		clients.Go(func() error {
			netlab.In(n, from, func() error {
				for ctx.Err() == nil {
					conn, err := netlab.DialHere(to)
					if err == nil {
						_, err = netlab.Ask(conn)
						conn.Close()
					}
					if err != nil {
						failed <- err
						continue
					}
					answers.Add(1)
				}
				return nil
			})
			return nil
		})
	}
	return func() (int64, []error) {
		cancel()
		_ = clients.Wait()
		close(failed)
		var all []error
		for err := range failed {
			all = append(all, err)
		}
		return answers.Load(), all
	}
}

// roll replaces the one Pod of a Service ten times, with a surge of one, under load. The
// old one dies as soon as it may, without a word to its clients.
func (n *nodeWorld) roll(mayEnd func(name string)) (answers int64, failures []error) {
	n.Helper()
	ip := n.service("web").Spec.ClusterIP + ":80"
	places := []netns.NsHandle{n.A, n.B}
	old := n.serve(places[0], "0")
	n.podIn(places[0], "pod-0", "web")
	n.eventually("the first Pod", func() error {
		if got := n.Get(n.C, "tcp", ip); got != "0" {
			return errors.New(got)
		}
		return nil
	})
	stop := n.load(n.C, ip)
	for i := 1; i <= 10; i++ {
		next := n.serve(places[i%2], fmt.Sprint(i))
		n.podIn(places[i%2], fmt.Sprintf("pod-%d", i), "web")
		before := fmt.Sprintf("pod-%d", i-1)
		mayEnd(before)
		old.kill()
		n.gone(before)
		old = next
	}
	return stop()
}

func TestARolloutDropsNothing(t *testing.T) {
	n := newWorld(t).withNode()
	var held []time.Duration
	answers, failures := n.roll(func(name string) {
		start := time.Now()
		wait(t, n.gate.LeftEndpoints(n.ctx, n.remove(name)), "the Pod to leave its endpoints")
		held = append(held, time.Since(start))
	})
	slices.Sort(held)
	t.Logf("%d answers; a Pod was held for %v, at most %v", answers, held[len(held)/2], held[len(held)-1])
	if len(failures) > 0 {
		t.Errorf("%d of %d requests failed, the first: %v", len(failures), answers, failures[0])
	}
}

// Without the gate requests fail: the test above can.
func TestARolloutWithoutConfirmationsDropsRequests(t *testing.T) {
	n := newWorld(t).withNode()
	answers, failures := n.roll(func(name string) { n.remove(name) })
	t.Logf("%d answers, %d failures", answers, len(failures))
	if len(failures) == 0 {
		t.Error("nothing failed")
	}
}

// From a probe's result in the Pod's status to the kernel it takes a few milliseconds.
func TestReadinessIsSoonInTheKernel(t *testing.T) {
	n := newWorld(t).withNode()
	ip := n.service("web").Spec.ClusterIP + ":80"
	n.serve(n.A, "a")
	p := n.podIn(n.A, "one", "web")
	n.eventually("the first Pod", func() error {
		if got := n.Get(n.C, "tcp", ip); got != "a" {
			return errors.New(got)
		}
		return nil
	})
	var took []time.Duration
	for i := range 40 {
		ready := i%2 == 1
		start := time.Now()
		p = n.says(p, ready)
		for {
			// What answers is the kernel: refused when nobody is ready.
			conn, err := n.Dial(n.C, "tcp", ip)
			if err == nil {
				conn.Close()
			}
			if (err == nil) == ready {
				break
			}
			if time.Since(start) > 20*time.Second {
				t.Fatalf("still %v", err)
			}
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.Logf("median %v, 95%% %v", took[len(took)/2], took[len(took)*95/100])
	if median := took[len(took)/2]; median > 100*time.Millisecond {
		t.Errorf("median %v", median)
	}
}

// A connection that is open when its Pod leaves the endpoints stays.
func TestConnectionsOutliveEndpoints(t *testing.T) {
	n := newWorld(t).withNode()
	ip := n.service("web").Spec.ClusterIP + ":80"
	n.serve(n.A, "a")
	n.serve(n.B, "b")
	n.podIn(n.A, "one", "web")
	var conn net.Conn
	testkit.WaitFor(t, "a connection", func() (err error) {
		conn, err = n.Dial(n.C, "tcp", ip)
		return err
	})
	defer conn.Close()
	n.podIn(n.B, "two", "web")
	wait(t, n.gate.LeftEndpoints(n.ctx, n.remove("one")), "the Pod to leave its endpoints")
	for range 10 {
		if got := n.Get(n.C, "tcp", ip); got != "b" {
			t.Fatalf("a new connection went to %s", got)
		}
	}
	if answer, err := netlab.Ask(conn); err != nil || answer != "a" {
		t.Errorf("the open connection: %q, %v", answer, err)
	}
}

// A new Pod is routed once packets reach it, and not before.
func TestRoutedMeansRouted(t *testing.T) {
	n := newWorld(t).withNode()
	ip := n.service("web").Spec.ClusterIP + ":80"
	n.serve(n.A, "a")
	for i := range 10 {
		name := fmt.Sprintf("pod-%d", i)
		p := n.podIn(n.A, name, "web")
		n.eventually("the Pod to be routed", func() error {
			if !n.gate.IsRouted(p) {
				return errors.New("not routed")
			}
			return nil
		})
		if got := n.Get(n.C, "tcp", ip); got != "a" {
			t.Fatalf("round %d: %s although the Pod is routed", i, got)
		}
		n.remove(name)
		n.gone(name)
		n.equal("the Pod to go", "", func() string { return n.shown("web") })
	}
}

// A Service of type LoadBalancer is reached at the node's own address; a second one that
// wants the same port waits until the first is gone.
func TestLoadBalancerOnTheNode(t *testing.T) {
	n := newWorld(t).withNode()
	balanced := func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeLoadBalancer }
	n.service("web", balanced)
	n.serve(n.A, "a")
	n.podIn(n.A, "one", "web")
	ingress := func(name string) string {
		s := must(n.client.CoreV1().Services("default").Get(n.ctx, name, metav1.GetOptions{}))(t)
		var ips []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			ips = append(ips, i.IP)
		}
		return strings.Join(ips, " ")
	}
	n.equal("the address", "198.18.0.1", func() string { return ingress("web") })
	n.equal("an answer from outside", "a", func() string { return n.Get(n.Outside, "tcp", "198.18.0.1:80") })
	n.service("zweb", balanced) // of the same second perhaps: then names decide
	n.eventually("word of the refusal", func() error {
		events := must(n.client.CoreV1().Events("default").List(n.ctx, metav1.ListOptions{}))(t)
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "zweb" && strings.Contains(e.Message, "taken by Service default/web") {
				return nil
			}
		}
		return errors.New("no event")
	})
	if got := ingress("zweb"); got != "" {
		t.Errorf("the second has %s", got)
	}
	if err := n.client.CoreV1().Services("default").Delete(n.ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.equal("the address, now free", "198.18.0.1", func() string { return ingress("zweb") })
	n.equal("nobody behind it", "refused", func() string { return n.Get(n.Outside, "tcp", "198.18.0.1:80") })
}

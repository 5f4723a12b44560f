package traffic

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"mend/internal/network/catalog"
	"mend/internal/testkit"
)

// world is a real API server with a Service default/web and two nodes that confirm by
// hand.
type world struct {
	t      *testing.T
	client kubernetes.Interface
	gate   *Gate
	acks   *Acks
	a, b   *Acknowledger
	slice  *discovery.EndpointSlice
}

func newWorld(t *testing.T, change ...func(*v1.Service)) *world {
	t.Helper()
	w := &world{t: t, client: testkit.StartAPIServer(t).Client}
	log := slog.New(slog.DiscardHandler)
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []v1.ServicePort{{Port: 80}}}}
	for _, f := range change {
		f(service)
	}
	_, err := w.client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
	w.check(err)
	w.slice, err = w.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discovery.LabelServiceName: "web"}}, AddressType: discovery.AddressTypeIPv4,
	}, metav1.CreateOptions{})
	w.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	pictures := catalog.New()
	w.acks = NewAcks("")
	w.gate = NewGate(Config{Catalog: pictures, Acks: w.acks, Log: log})
	w.a, w.b = NewAcknowledger(w.client, "a", log), NewAcknowledger(w.client, "b", log)
	for _, node := range []*Acknowledger{w.a, w.b} {
		w.check(node.Announce(t.Context()))
		go node.Run(ctx)
	}
	go pictures.Run(ctx, w.client, log)
	go w.acks.Run(ctx, w.client, log)
	go w.gate.Run(ctx)
	return w
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// show puts Pods into the slice, as "uid" (ready), "uid-" (terminating) or "uid?" (not
// ready), and returns its version.
func (w *world) show(pods ...string) uint64 {
	w.t.Helper()
	w.slice = w.slice.DeepCopy()
	w.slice.Endpoints = nil
	for i, text := range pods {
		uid := strings.TrimRight(text, "-?")
		ending, unready := strings.HasSuffix(text, "-"), strings.HasSuffix(text, "?")
		w.slice.Endpoints = append(w.slice.Endpoints, discovery.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.42.0.%d", i+2)},
			TargetRef:  &v1.ObjectReference{Kind: "Pod", UID: types.UID(uid)},
			Conditions: discovery.EndpointConditions{Ready: ptr.To(!ending && !unready), Serving: ptr.To(!unready), Terminating: &ending},
		})
	}
	var err error
	w.slice, err = w.client.DiscoveryV1().EndpointSlices("default").Update(w.t.Context(), w.slice, metav1.UpdateOptions{})
	w.check(err)
	version, err := strconv.ParseUint(w.slice.ResourceVersion, 10, 64)
	w.check(err)
	return version
}

func pod(uid string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid), Labels: map[string]string{"app": "web"},
			DeletionTimestamp: ptr.To(metav1.NewTime(time.Now().Add(30 * time.Second))), DeletionGracePeriodSeconds: ptr.To[int64](30)},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.42.0.2", PodIPs: []v1.PodIP{{IP: "10.42.0.2"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func hasLeft(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// within waits for a channel; it fails after d, or when it was closed too soon.
func (w *world) within(c <-chan struct{}, d time.Duration, what string) {
	w.t.Helper()
	select {
	case <-c:
	case <-time.After(d):
		w.t.Fatalf("%s: not within %v", what, d)
	}
}

// held asserts that the Pod does not go on for a moment.
func (w *world) held(c <-chan struct{}, what string) {
	w.t.Helper()
	select {
	case <-c:
		w.t.Fatalf("%s: the Pod went on", what)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestAPodLeavesFirst(t *testing.T) {
	w := newWorld(t)
	w.show("one", "two")
	left := w.gate.LeftEndpoints(t.Context(), pod("one"))
	if again := w.gate.LeftEndpoints(t.Context(), pod("one")); again != left {
		t.Error("asking again is another wait")
	}
	w.held(left, "still ready")
	version := w.show("one-", "two")
	w.held(left, "no node has confirmed")
	w.a.Programmed(version)
	w.held(left, "one node has not confirmed")
	w.b.Programmed(version - 1)
	w.held(left, "one node is behind")
	w.b.Programmed(version)
	w.within(left, Limit/2, "both have confirmed")
	late := w.gate.LeftEndpoints(t.Context(), pod("one"))
	w.within(late, Limit/2, "asked again after that")
}

func TestWhoIsNotHeldUp(t *testing.T) {
	w := newWorld(t, func(s *v1.Service) { s.Spec.PublishNotReadyAddresses = false })
	w.show("one")
	testkit.WaitFor(t, "the Services", func() error {
		if !w.gate.c.Catalog.Complete() {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	for name, p := range map[string]*v1.Pod{
		"no Service selects it": pod("x", func(p *v1.Pod) { p.Labels = nil }),
		"it has no address":     pod("x", func(p *v1.Pod) { p.Status.PodIP, p.Status.PodIPs = "", nil }),
		"it is done":            pod("x", func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }),
		"it is not deleted":     pod("x", func(p *v1.Pod) { p.DeletionTimestamp = nil }),
		"it has no grace":       pod("x", func(p *v1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](0) }),
		"the Service has no address of its family": pod("x", func(p *v1.Pod) {
			p.Status.PodIP, p.Status.PodIPs = "fd42::2", []v1.PodIP{{IP: "fd42::2"}}
		}),
	} {
		if !hasLeft(w.gate.LeftEndpoints(t.Context(), p)) {
			t.Errorf("%s: held up", name)
		}
	}
	services := w.client.CoreV1().Services("default")
	s, err := services.Get(t.Context(), "web", metav1.GetOptions{})
	w.check(err)
	s.Spec.PublishNotReadyAddresses = true
	_, err = services.Update(t.Context(), s, metav1.UpdateOptions{})
	w.check(err)
	testkit.WaitFor(t, "publishNotReadyAddresses to count", func() error {
		if !hasLeft(w.gate.LeftEndpoints(t.Context(), pod(fmt.Sprint(time.Now().UnixNano())))) {
			return fmt.Errorf("held up")
		}
		return nil
	})
}

// A proxy that stops confirming costs one Pod two seconds, and no other anything, until
// it confirms again.
func TestAProxyThatStopsConfirming(t *testing.T) {
	w := newWorld(t)
	w.a.Programmed(w.show("one", "two", "three"))
	start := time.Now()
	version := w.show("one-", "two", "three")
	left := w.gate.LeftEndpoints(t.Context(), pod("one"))
	w.a.Programmed(version)
	w.within(left, Limit+2*time.Second, "one node is dead")
	if took := time.Since(start); took < Limit-100*time.Millisecond {
		t.Errorf("the Pod was held for %v only", took)
	}
	version = w.show("one-", "two-", "three")
	left = w.gate.LeftEndpoints(t.Context(), pod("two"))
	w.held(left, "the other node has not confirmed")
	w.a.Programmed(version)
	w.within(left, Limit/2, "the dead node is not waited for again")
	w.b.Programmed(version)
	testkit.WaitFor(t, "the node to confirm", func() error {
		if nodes := w.acks.behind(version + 1); len(nodes) != 2 {
			return fmt.Errorf("waiting for %v", nodes)
		}
		return nil
	})
	version = w.show("one-", "two-", "three-")
	left = w.gate.LeftEndpoints(t.Context(), pod("three"))
	w.a.Programmed(version)
	w.held(left, "the node is alive again, and has not confirmed")
	w.b.Programmed(version)
	w.within(left, Limit/2, "both have confirmed")
}

func TestBounds(t *testing.T) {
	w := newWorld(t)
	w.show("one")
	start := time.Now()
	short := w.gate.LeftEndpoints(t.Context(), pod("one", func(p *v1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](1) }))
	w.within(short, Limit, "half of a grace period of a second")
	if took := time.Since(start); took < 400*time.Millisecond {
		t.Errorf("held for %v only", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := w.gate.LeftEndpoints(ctx, pod("two"))
	w.held(left, "nothing shows it as terminating")
	cancel()
	w.within(left, Limit/2, "nobody asks any more")
}

// What goes need not be waited for: a Service, or a node with its proxy.
func TestServicesAndNodesGo(t *testing.T) {
	w := newWorld(t)
	w.show("one")
	left := w.gate.LeftEndpoints(t.Context(), pod("one"))
	w.held(left, "it is ready")
	w.check(w.client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	w.within(left, Limit/2, "the Service is gone")

	w = newWorld(t)
	version := w.show("one-")
	w.a.Programmed(version)
	left = w.gate.LeftEndpoints(t.Context(), pod("one"))
	w.held(left, "one node has not confirmed")
	w.check(w.b.Withdraw(t.Context()))
	w.within(left, Limit/2, "the node's proxy is gone")
}

func TestARoutedPod(t *testing.T) {
	w := newWorld(t)
	alive := func(p *v1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = nil, nil }
	told := make(chan types.NamespacedName, 10)
	w.gate.OnRouted(func(name types.NamespacedName) { told <- name })
	w.show("one?")
	one := pod("one", alive)
	is := func(want bool, what string) {
		t.Helper()
		testkit.WaitFor(t, what, func() error {
			if got := w.gate.IsRouted(one); got != want {
				return fmt.Errorf("routed: %v", got)
			}
			return nil
		})
	}
	is(false, "a Pod that is not ready")
	version := w.show("one")
	w.a.Programmed(version)
	is(false, "a Pod that one node has not")
	w.b.Programmed(version)
	select {
	case name := <-told:
		if name.Name != "one" {
			t.Errorf("told of %v", name)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told")
	}
	is(true, "a Pod that all have")
	// What happens to others does not unroute it.
	w.show("one", "two")
	is(true, "a Pod that all have, while others come")
	if !w.gate.IsRouted(pod("lone", alive, func(p *v1.Pod) { p.Labels = nil })) {
		t.Error("a Pod that no Service selects is not routed")
	}
}

func TestConfirmations(t *testing.T) {
	w := newWorld(t)
	leases := w.client.CoordinationV1().Leases(Namespace)
	get := func() *coordination.Lease {
		t.Helper()
		lease, err := leases.Get(t.Context(), LeaseName("a"), metav1.GetOptions{})
		w.check(err)
		return lease
	}
	w.a.Programmed(41)
	w.a.Programmed(42)
	testkit.WaitFor(t, "the confirmation", func() error {
		if got := get().Annotations[Annotation]; got != "42" {
			return fmt.Errorf("at %s", got)
		}
		return nil
	})
	// A new process announces itself and keeps what its table still has.
	w.check(w.a.Announce(t.Context()))
	w.check(w.a.Belong(t.Context(), "some-node"))
	if got := get(); got.Annotations[Annotation] != "42" || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "some-node" {
		t.Errorf("announcing again: %+v", got.ObjectMeta)
	}
	w.check(leases.Delete(t.Context(), LeaseName("a"), metav1.DeleteOptions{}))
	w.a.Programmed(43)
	testkit.WaitFor(t, "the confirmation to come back", func() error {
		lease, err := leases.Get(t.Context(), LeaseName("a"), metav1.GetOptions{})
		if err == nil && lease.Annotations[Annotation] != "43" {
			return fmt.Errorf("at %v", lease.Annotations)
		}
		return err
	})
	w.check(w.a.Withdraw(t.Context()))
	w.check(w.a.Withdraw(t.Context()))
	if name := LeaseName(strings.Repeat("n", 250)); len(name) > 253 {
		t.Errorf("a name of %d characters", len(name))
	}
}

// A thousand changes cost far fewer writes.
func TestConfirmationsAreFew(t *testing.T) {
	w := newWorld(t)
	before, err := w.client.CoordinationV1().Leases(Namespace).Get(t.Context(), LeaseName("a"), metav1.GetOptions{})
	w.check(err)
	start := time.Now()
	for i := range uint64(1000) {
		w.a.Programmed(1000 + i)
		<-time.After(100 * time.Microsecond)
	}
	most := int(time.Since(start)/pause) + 2
	testkit.WaitFor(t, "the last confirmation", func() error {
		lease, err := w.client.CoordinationV1().Leases(Namespace).Get(t.Context(), LeaseName("a"), metav1.GetOptions{})
		if err == nil && lease.Annotations[Annotation] != "1999" {
			err = fmt.Errorf("at %s", lease.Annotations[Annotation])
		}
		return err
	})
	after, err := w.client.CoordinationV1().Leases(Namespace).List(t.Context(), metav1.ListOptions{})
	w.check(err)
	from, err := strconv.Atoi(before.ResourceVersion)
	w.check(err)
	to, err := strconv.Atoi(after.ResourceVersion)
	w.check(err)
	if writes := to - from; writes > most {
		t.Errorf("%d writes, want at most %d", writes, most)
	}
}

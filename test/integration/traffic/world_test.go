package traffic

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/controller/endpoints"
	"mend/internal/controller/endpoints/endpointslice"
	"mend/internal/controller/endpoints/mirror"
	"mend/internal/controller/loadbalancer"
	"mend/internal/loop"
	"mend/internal/network/catalog"
	"mend/internal/network/netlab"
	"mend/internal/network/proxy"
	"mend/internal/testkit"
	"mend/internal/traffic"
	"mend/internal/view"
)

// node is the one node, which is the lab's.
const node = "here"

// world is an API server with the loops of endpoints on it.
type world struct {
	*testing.T
	client kubernetes.Interface
	ctx    context.Context
}

func newWorld(t *testing.T) *world {
	t.Helper()
	server := testkit.StartAPIServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactoryWithOptions(server.Client, 0, informers.WithTransform(view.StripManagedFields))
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: server.Client.CoreV1().Events("")})
	var running sync.WaitGroup
	var built []*loop.Loop
	for _, declaration := range []loop.Declaration{endpointslice.Declaration(), endpoints.Declaration(), mirror.Declaration(),
		loadbalancer.Declaration(6443)} {
		config := server.ClientConfig(declaration.Name)
		client, err := server.Server.Client(declaration.Name)
		if err != nil {
			t.Fatal(err)
		}
		made, err := declaration.Build(loop.Env{
			Client: client, Rest: config, Informers: factory, Clock: clock.RealClock{}, Log: logger(),
			Events: broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: declaration.EventSource}),
		})
		if err != nil {
			t.Fatal(err)
		}
		built = append(built, made)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for _, made := range built {
		running.Go(func() { made.Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
		broadcaster.Shutdown()
	})
	w := &world{T: t, client: server.Client, ctx: ctx}
	here := must(w.client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}))(t)
	here.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}
	here.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "198.18.0.1"}}
	must(w.client.CoreV1().Nodes().UpdateStatus(ctx, here, metav1.UpdateOptions{}))(t)
	return w
}

func logger() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// must fails the test on an error: must(f())(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// service makes a Service that selects Pods with app: <its name>.
func (w *world) service(name string, change ...func(*v1.Service)) *v1.Service {
	w.Helper()
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{
		Selector: map[string]string{"app": name}, Ports: []v1.ServicePort{{Name: "http", Port: 80}}}}
	s.Spec.Ports[0].TargetPort.IntVal = 8080
	for _, f := range change {
		f(s)
	}
	return must(w.client.CoreV1().Services("default").Create(w.ctx, s, metav1.CreateOptions{}))(w)
}

// pod makes a Pod of an app and says where it runs and whether it is ready.
func (w *world) pod(name, app, ip string, ready bool) *v1.Pod {
	w.Helper()
	p := must(w.client.CoreV1().Pods("default").Create(w.ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{}))(w)
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = v1.PodRunning, ip, []v1.PodIP{{IP: ip}}
	return w.says(p, ready)
}

// says posts the Pod's status as its agent would.
func (w *world) says(p *v1.Pod, ready bool) *v1.Pod {
	w.Helper()
	status := v1.ConditionFalse
	if ready {
		status = v1.ConditionTrue
	}
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
	return must(w.client.CoreV1().Pods("default").UpdateStatus(w.ctx, p, metav1.UpdateOptions{}))(w)
}

// remove deletes a Pod with the grace period, and returns it as it is then.
func (w *world) remove(name string) *v1.Pod {
	w.Helper()
	grace := int64(30)
	if err := w.client.CoreV1().Pods("default").Delete(w.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		w.Fatal(err)
	}
	return must(w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{}))(w)
}

// gone deletes what is left of a Pod, as the agent does in the end.
func (w *world) gone(name string) {
	w.Helper()
	if err := w.client.CoreV1().Pods("default").Delete(w.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		w.Fatal(err)
	}
}

// slices shows a Service's endpoints as "address(ready serving terminating)", sorted.
func (w *world) slices(service string) []discovery.EndpointSlice {
	w.Helper()
	return must(w.client.DiscoveryV1().EndpointSlices("default").List(w.ctx, metav1.ListOptions{
		LabelSelector: discovery.LabelServiceName + "=" + service}))(w).Items
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	testkit.WaitFor(w, what, check)
}

// equal waits until a view of the world is as wanted.
func (w *world) equal(what, want string, got func() string) {
	w.Helper()
	w.eventually(what, func() error {
		if text := got(); text != want {
			return fmt.Errorf("got %q, want %q", text, want)
		}
		return nil
	})
}

// nodeWorld is a world with the lab's node in it.
type nodeWorld struct {
	*world
	*netlab.Lab
	gate   *traffic.Gate
	places sync.Map // Pod's UID → its namespace
}

// podIn makes a ready Pod of an app in one of the lab's Pods.
func (n *nodeWorld) podIn(ns netns.NsHandle, name, app string) *v1.Pod {
	n.Helper()
	ip := map[netns.NsHandle]string{n.A: "10.42.0.2", n.B: "10.42.0.3", n.C: "10.42.0.4"}[ns]
	p := n.pod(name, app, ip, true)
	n.places.Store(p.UID, ns)
	return p
}

// netNS tells the gate where a Pod's connections are.
func (n *nodeWorld) netNS(pod types.UID) (string, bool) {
	ns, ok := n.places.Load(pod)
	if !ok {
		return "", false
	}
	return fmt.Sprintf("/proc/self/fd/%d", int(ns.(netns.NsHandle))), true
}

// withNode runs a proxy in the lab's node, and a gate that listens to it.
func (w *world) withNode() *nodeWorld {
	w.Helper()
	n := &nodeWorld{world: w, Lab: netlab.New(w, true)}
	pictures, log := catalog.New(), logger()
	acks := traffic.NewAcks(node)
	acknowledger := traffic.NewAcknowledger(w.client, node, log)
	n.gate = traffic.NewGate(traffic.Config{Catalog: pictures, Acks: acks, NetNS: n.netNS, Log: log})
	if err := acknowledger.Announce(w.ctx); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	var running sync.WaitGroup
	var once sync.Once
	ready := make(chan struct{})
	running.Go(func() {
		netlab.In(w, n.Node, func() error {
			p, err := proxy.New(proxy.Config{
				InstanceID: "abcdef", NodeName: node, Catalog: pictures, Log: log, Bridge: "pods",
				PodRanges:     []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24")},
				ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
				Programmed: func(version uint64) {
					acks.Programmed(version)
					acknowledger.Programmed(version)
					once.Do(func() { close(ready) })
				},
			})
			if err == nil {
				p.Run(ctx)
			}
			return err
		})
	})
	running.Go(func() { pictures.Run(ctx, w.client, log) })
	running.Go(func() { acks.Run(ctx, w.client, log) })
	running.Go(func() { acknowledger.Run(ctx) })
	running.Go(func() { n.gate.Run(ctx) })
	w.Cleanup(func() { cancel(); running.Wait() })
	// A packet to a ClusterIP before there are rules would leave a flow behind that goes
	// nowhere, for whoever has that port next.
	wait(w.T, ready, "the proxy's first rules")
	return n
}

// server answers in a Pod, until it is killed: then it breaks off whatever it does, as a
// process does that has no handler for SIGTERM.
type server struct {
	listener net.Listener
	mu       sync.Mutex
	open     map[net.Conn]bool
}

func (n *nodeWorld) serve(ns netns.NsHandle, name string) *server {
	n.Helper()
	s := &server{open: map[net.Conn]bool{}}
	netlab.In(n, ns, func() (err error) {
		s.listener, err = net.Listen("tcp", ":8080")
		return err
	})
	go func() {
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[conn] = true
			s.mu.Unlock()
			go func() {
				defer conn.Close()
				buffer := make([]byte, 64)
				for {
					if _, err := conn.Read(buffer); err != nil {
						return
					}
					io.WriteString(conn, name)
				}
			}()
		}
	}()
	n.Cleanup(s.kill)
	return s
}

func (s *server) kill() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}

// wait returns a channel's value, or fails after a generous while.
func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

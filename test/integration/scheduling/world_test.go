package scheduling

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
	"mend/internal/testkit"
	"mend/internal/view"
)

// world is an API server with the loops under test on it.
type world struct {
	*testing.T
	client kubernetes.Interface
	ctx    context.Context
}

// newWorld starts the loops on the given clock and ends them with the test.
func newWorld(t *testing.T, clock clock.WithTicker, declarations ...loop.Declaration) *world {
	t.Helper()
	server := testkit.StartAPIServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactoryWithOptions(server.Client, 0, informers.WithTransform(view.StripManagedFields))
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: server.Client.CoreV1().Events("")})
	ended := make(chan struct{}, len(declarations))
	var built []*loop.Loop
	for _, declaration := range declarations {
		config := server.ClientConfig(declaration.Name)
		client, err := server.Server.Client(declaration.Name)
		if err != nil {
			t.Fatal(err)
		}
		made, err := declaration.Build(loop.Env{
			Client: client, Rest: config, Informers: factory, Clock: clock, Log: slog.New(slog.DiscardHandler),
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
		go func() { made.Run(ctx); ended <- struct{}{} }()
	}
	t.Cleanup(func() {
		cancel()
		for range built {
			<-ended
		}
		factory.Shutdown()
		broadcaster.Shutdown()
	})
	return &world{T: t, client: server.Client, ctx: ctx}
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

// addNode makes a node of 4 cores, 8 GiB and 110 Pods whose agent says ready.
func (w *world) addNode(name string, changes ...func(*v1.Node)) *v1.Node {
	w.Helper()
	amounts := v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"),
		v1.ResourcePods: resource.MustParse("110")}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Capacity: amounts, Allocatable: amounts,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady",
				LastHeartbeatTime: metav1.Now()}}},
	}
	for _, change := range changes {
		change(node)
	}
	made := must(w.client.CoreV1().Nodes().Create(w.ctx, node.DeepCopy(), metav1.CreateOptions{}))(w)
	node.ObjectMeta = made.ObjectMeta
	return must(w.client.CoreV1().Nodes().UpdateStatus(w.ctx, node, metav1.UpdateOptions{}))(w)
}

// says posts the node's Ready condition as its agent would.
func (w *world) says(name string, status v1.ConditionStatus) {
	w.Helper()
	w.eventually("the agent's status", func() error {
		node, err := w.client.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range node.Status.Conditions {
			if c := &node.Status.Conditions[i]; c.Type == v1.NodeReady {
				c.Status, c.Reason, c.Message, c.LastHeartbeatTime = status, "KubeletSaysSo", "", metav1.NewTime(c.LastHeartbeatTime.Add(time.Second))
			}
		}
		_, err = w.client.CoreV1().Nodes().UpdateStatus(w.ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// renews renews the node's Lease as its agent would; beat makes each different.
func (w *world) renews(name string, beat int) {
	w.Helper()
	leases := w.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	at := metav1.NewMicroTime(time.Unix(int64(beat), 0))
	lease, err := leases.Get(w.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordination.LeaseSpec{RenewTime: &at}}
		must(leases.Create(w.ctx, lease, metav1.CreateOptions{}))(w)
		return
	}
	if err != nil {
		w.Fatal(err)
	}
	lease.Spec.RenewTime = &at
	must(leases.Update(w.ctx, lease, metav1.UpdateOptions{}))(w)
}

// addPod makes a Pod of one container that asks for the CPU.
func (w *world) addPod(name, cpu string, changes ...func(*v1.Pod)) *v1.Pod {
	w.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "app", Image: "mend.local/web:1.0",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return must(w.client.CoreV1().Pods("default").Create(w.ctx, pod, metav1.CreateOptions{}))(w)
}

func (w *world) pod(name string) *v1.Pod {
	w.Helper()
	return must(w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{}))(w)
}

func (w *world) node(name string) *v1.Node {
	w.Helper()
	return must(w.client.CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{}))(w)
}

func (w *world) deletePod(name string) {
	w.Helper()
	now := int64(0)
	if err := w.client.CoreV1().Pods("default").Delete(w.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		w.Fatal(err)
	}
}

// eventually waits for the world to be as check wants it.
func (w *world) eventually(what string, check func() error) {
	w.Helper()
	testkit.WaitFor(w.T, what, check)
}

// boundTo waits until the Pod is on the node.
func (w *world) boundTo(pod, node string) {
	w.Helper()
	w.eventually("the binding", func() error {
		if got := w.pod(pod).Spec.NodeName; got != node {
			return fmt.Errorf("pod %s is on %q, want %q", pod, got, node)
		}
		return nil
	})
}

// scheduled waits for the Pod's PodScheduled condition and compares it.
func (w *world) scheduled(pod string, status v1.ConditionStatus, reason, message string) {
	w.Helper()
	w.eventually("the condition PodScheduled", func() error {
		for _, c := range w.pod(pod).Status.Conditions {
			if c.Type != v1.PodScheduled {
				continue
			}
			if c.Status != status || c.Reason != reason || c.Message != message {
				return fmt.Errorf("pod %s: %s %s %q", pod, c.Status, c.Reason, c.Message)
			}
			return nil
		}
		return errors.New("no such condition")
	})
}

// event waits for an event of the source about the object.
func (w *world) event(about, source, kind, reason, message string) {
	w.Helper()
	w.eventually("the event "+reason, func() error {
		events, err := w.client.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + about})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.Source.Component == source && e.Type == kind && e.Reason == reason && e.Message == message {
				return nil
			}
			seen = append(seen, fmt.Sprintf("%s %s %s %q", e.Source.Component, e.Type, e.Reason, e.Message))
		}
		return fmt.Errorf("only %q", seen)
	})
}

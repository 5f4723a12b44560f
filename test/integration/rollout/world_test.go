package rollout

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"mend/internal/controller/deployment"
	"mend/internal/controller/replicaset"
	"mend/internal/loop"
	"mend/internal/testkit"
	"mend/internal/view"
)

// cluster is an API server with the two loops and a simulated agent.
type cluster struct {
	server *testkit.APIServer
	client kubernetes.Interface
	agent  *agent
}

func newCluster(t *testing.T) *cluster {
	server := testkit.StartAPIServer(t)
	c := &cluster{server: server, client: server.Client}
	c.agent = startAgent(t, server.Client)
	return c
}

// startLoops runs both loops until the returned function is called.
func (c *cluster) startLoops(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	shared, err := kubernetes.NewForConfig(c.server.ClientConfig("informers"))
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(shared, 0, informers.WithTransform(view.StripManagedFields))
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: shared.CoreV1().Events("")})
	var running sync.WaitGroup
	var built []*loop.Loop
	for _, declaration := range []loop.Declaration{deployment.Declaration(), replicaset.Declaration(nil)} {
		config := c.server.ClientConfig(declaration.Name)
		client, err := c.server.Server.Client(declaration.Name)
		if err != nil {
			t.Fatal(err)
		}
		l, err := declaration.Build(loop.Env{
			Client: client, Rest: config, Informers: factory, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
			Events: broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: declaration.EventSource}),
		})
		if err != nil {
			t.Fatal(err)
		}
		built = append(built, l)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for _, l := range built {
		running.Go(func() { l.Run(ctx) })
	}
	return sync.OnceFunc(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
		broadcaster.Shutdown()
	})
}

// agent gives every Pod a node and makes it ready, unless its image is "bad"; a Pod
// that is deleted ends at once, unless its namespace is held.
type agent struct {
	client kubernetes.Interface
	queue  *loop.Loop
	pods   cache.Store

	mu   sync.Mutex
	held map[string]bool // namespaces whose Pods do not end
}

func startAgent(t testing.TB, client kubernetes.Interface) *agent {
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	a := &agent{client: client, pods: informer.GetStore(), held: map[string]bool{}}
	a.queue = loop.New(loop.Options{Name: "test-agent", Reconciler: loop.Func(a.sync), Workers: 4, Log: slog.New(slog.DiscardHandler)})
	wake := func(obj any) {
		if key, err := cache.MetaNamespaceKeyFunc(obj); err == nil {
			a.queue.Add(key)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, obj any) { wake(obj) }}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	factory.Start(ctx.Done())
	running.Go(func() { a.queue.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
	})
	return a
}

func (a *agent) hold(namespace string, held bool) {
	a.mu.Lock()
	a.held[namespace] = held
	a.mu.Unlock()
	for _, obj := range a.pods.List() {
		if pod := obj.(*v1.Pod); pod.Namespace == namespace {
			a.queue.Add(pod.Namespace + "/" + pod.Name)
		}
	}
}

func (a *agent) isHeld(namespace string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[namespace]
}

func (a *agent) sync(ctx context.Context, key string) (time.Time, error) {
	obj, ok, err := a.pods.GetByKey(key)
	if err != nil || !ok {
		return time.Time{}, err
	}
	pod := obj.(*v1.Pod).DeepCopy()
	pods := a.client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil && a.isHeld(pod.Namespace):
		return time.Time{}, nil
	case pod.DeletionTimestamp != nil:
		return time.Time{}, pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
	case pod.Spec.NodeName == "":
		return time.Time{}, pods.Bind(ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: v1.ObjectReference{Kind: "Node", Name: "n1"},
		}, metav1.CreateOptions{})
	case pod.Status.Phase != v1.PodPending || strings.Contains(pod.Spec.Containers[0].Image, "bad"):
		return time.Time{}, nil
	}
	pod.Status.Phase = v1.PodRunning
	pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{
		Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(),
	})
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return time.Time{}, err
}

// world is one test's namespace.
type world struct {
	*testing.T
	*cluster
	ctx       context.Context
	namespace string
}

func (c *cluster) newWorld(t *testing.T) *world {
	t.Helper()
	namespace, err := c.client.CoreV1().Namespaces().Create(t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "rollout-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &world{T: t, cluster: c, ctx: t.Context(), namespace: namespace.Name}
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	testkit.WaitFor(w.T, what, check)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// web is the Deployment "web": replicas of an image, 1 up and 0 down at a time.
func (w *world) web(replicas int32, image string, changes ...func(*apps.Deployment)) *apps.Deployment {
	w.Helper()
	labels := map[string]string{"app": "web"}
	d := &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: apps.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: image}}},
			},
		},
	}
	for _, change := range changes {
		change(d)
	}
	d, err := w.client.AppsV1().Deployments(w.namespace).Create(w.ctx, d, metav1.CreateOptions{})
	w.must(err)
	return d
}

// edit changes the Deployment as a client does.
func (w *world) edit(change func(*apps.Deployment)) *apps.Deployment {
	w.Helper()
	var d *apps.Deployment
	w.must(retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		d = w.deployment()
		change(d)
		d, err = w.client.AppsV1().Deployments(w.namespace).Update(w.ctx, d, metav1.UpdateOptions{})
		return err
	}))
	return d
}

func setImage(image string) func(*apps.Deployment) {
	return func(d *apps.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image }
}

func scaleTo(replicas int32) func(*apps.Deployment) {
	return func(d *apps.Deployment) { d.Spec.Replicas = ptr.To(replicas) }
}

func (w *world) deployment() *apps.Deployment {
	w.Helper()
	d, err := w.client.AppsV1().Deployments(w.namespace).Get(w.ctx, "web", metav1.GetOptions{})
	w.must(err)
	return d
}

// replicaSet is the one whose template has the image; nil if there is none.
func (w *world) replicaSet(image string) *apps.ReplicaSet {
	w.Helper()
	list, err := w.client.AppsV1().ReplicaSets(w.namespace).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for i := range list.Items {
		if list.Items[i].Spec.Template.Spec.Containers[0].Image == image {
			return &list.Items[i]
		}
	}
	return nil
}

// pods are those of the namespace that are not being deleted, by name.
func (w *world) pods() []v1.Pod {
	w.Helper()
	list, err := w.client.CoreV1().Pods(w.namespace).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	return slices.DeleteFunc(list.Items, func(p v1.Pod) bool { return p.DeletionTimestamp != nil })
}

// rolledOut waits until the Deployment's rollout is complete, as kubectl rollout
// status would see it, and says so in its condition.
func (w *world) rolledOut() *apps.Deployment {
	w.Helper()
	var d *apps.Deployment
	w.eventually("the rollout", func() error {
		d = w.deployment()
		s, want := d.Status, *d.Spec.Replicas
		progressing := conditionOf(d, apps.DeploymentProgressing)
		if s.ObservedGeneration == d.Generation && s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want &&
			progressing.Reason == "NewReplicaSetAvailable" {
			return nil
		}
		return fmt.Errorf("status %+v", s)
	})
	return d
}

func conditionOf(d *apps.Deployment, kind apps.DeploymentConditionType) apps.DeploymentCondition {
	for _, c := range d.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return apps.DeploymentCondition{}
}

// waitsFor waits until the Deployment has a condition of that reason.
func (w *world) waitsFor(kind apps.DeploymentConditionType, reason string) apps.DeploymentCondition {
	w.Helper()
	var c apps.DeploymentCondition
	w.eventually(reason, func() error {
		if c = conditionOf(w.deployment(), kind); c.Reason != reason {
			return fmt.Errorf("%s is %+v", kind, c)
		}
		return nil
	})
	return c
}

// hasEvent waits for an event about an object.
func (w *world) hasEvent(kind, reason, message string) {
	w.Helper()
	w.eventually("event "+reason+": "+message, func() error {
		events, err := w.client.CoreV1().Events(w.namespace).List(w.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == kind && e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
			seen = append(seen, e.InvolvedObject.Kind+" "+e.Reason+": "+e.Message)
		}
		return fmt.Errorf("events are\n%s", strings.Join(seen, "\n"))
	})
}

// watchBounds follows the Pods of the namespace until the returned function is
// called, which fails the test if there ever were more than ceiling active or
// fewer than floor ready.
func (w *world) watchBounds(floor, ceiling int) (check func()) {
	w.Helper()
	list, err := w.client.CoreV1().Pods(w.namespace).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	watcher, err := w.client.CoreV1().Pods(w.namespace).Watch(w.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	w.must(err)
	pods := map[string]*v1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	most, fewest := countPods(pods)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*v1.Pod)
			if !ok {
				return
			}
			pods[pod.Name] = pod
			if event.Type == "DELETED" {
				delete(pods, pod.Name)
			}
			active, ready := countPods(pods)
			most, fewest = max(most, active), min(fewest, ready)
		}
	}()
	return func() {
		w.Helper()
		watcher.Stop()
		<-done
		if most > ceiling || fewest < floor {
			w.Errorf("there were up to %d Pods, and as few as %d ready; ceiling %d, floor %d", most, fewest, ceiling, floor)
		}
	}
}

func countPods(pods map[string]*v1.Pod) (active, ready int) {
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		active++
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
				ready++
			}
		}
	}
	return active, ready
}

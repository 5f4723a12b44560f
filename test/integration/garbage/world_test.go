package garbage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// world is an API server with loops on it.
type world struct {
	*testing.T
	ctx    context.Context
	server *testkit.APIServer
	client kubernetes.Interface
}

// newWorld starts a server and the loops, which end with the test.
func newWorld(t *testing.T, declarations ...loop.Declaration) *world {
	t.Helper()
	server := testkit.StartAPIServer(t)
	w := &world{T: t, ctx: t.Context(), server: server, client: server.Client}
	t.Cleanup(w.run(clock.RealClock{}, declarations...))
	return w
}

// run starts loops and returns what ends them, as a crash would: nothing is
// finished first.
func (w *world) run(clk clock.WithTicker, declarations ...loop.Declaration) (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithTransform(view.StripManagedFields))
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: w.client.CoreV1().Events("")})
	var built []*loop.Loop
	for _, declaration := range declarations {
		config := w.server.ClientConfig(declaration.Name)
		client, err := w.server.Server.Client(declaration.Name)
		if err != nil {
			w.Fatal(err)
		}
		made, err := declaration.Build(loop.Env{
			Client: client, Rest: config, Informers: factory, Clock: clk, Log: slog.New(slog.DiscardHandler),
			Events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: declaration.EventSource}),
		})
		if err != nil {
			w.Fatal(err)
		}
		built = append(built, made)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	ended := make(chan struct{})
	for _, made := range built {
		go func() { made.Run(ctx); ended <- struct{}{} }()
	}
	return func() {
		cancel()
		for range built {
			<-ended
		}
		factory.Shutdown()
		broadcaster.Shutdown()
	}
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

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// isGone turns the answer to a GET into whether the object is gone; nil is yes.
func isGone(err error) error {
	switch {
	case err == nil:
		return errors.New("still there")
	case apierrors.IsNotFound(err):
		return nil
	default:
		return err
	}
}

func (w *world) namespace(name string) {
	w.Helper()
	must(w.client.CoreV1().Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(w)
}

// configMap makes one; a ConfigMap can own and be owned as anything can, and no
// other loop touches it.
func (w *world) configMap(namespace, name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	w.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
	return must(w.client.CoreV1().ConfigMaps(namespace).Create(w.ctx, m, metav1.CreateOptions{}))(w)
}

func ownedBy(m *corev1.ConfigMap) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: m.Name, UID: m.UID}
}

func blocking(m *corev1.ConfigMap) metav1.OwnerReference {
	ref := ownedBy(m)
	yes := true
	ref.BlockOwnerDeletion = &yes
	return ref
}

func (w *world) get(m *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	found, err := w.client.CoreV1().ConfigMaps(m.Namespace).Get(w.ctx, m.Name, metav1.GetOptions{})
	if err == nil && found.UID != m.UID {
		return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), m.Name)
	}
	return found, err
}

func (w *world) erase(m *corev1.ConfigMap, policy metav1.DeletionPropagation) {
	w.Helper()
	w.ok(w.client.CoreV1().ConfigMaps(m.Namespace).Delete(w.ctx, m.Name, metav1.DeleteOptions{PropagationPolicy: &policy}))
}

// goes waits until each is gone.
func (w *world) goes(all ...*corev1.ConfigMap) {
	w.Helper()
	for _, m := range all {
		testkit.WaitFor(w, m.Name+" to go", func() error {
			_, err := w.get(m)
			return isGone(err)
		})
	}
}

// stays asserts that each is there and is not being deleted.
func (w *world) stays(all ...*corev1.ConfigMap) {
	w.Helper()
	for _, m := range all {
		found, err := w.get(m)
		if err != nil || found.DeletionTimestamp != nil {
			w.Errorf("%s should have stayed: %v, %v", m.Name, found, err)
		}
	}
}

// hasOwners waits until m names exactly these owners.
func (w *world) hasOwners(m *corev1.ConfigMap, want ...types.UID) {
	w.Helper()
	testkit.WaitFor(w, fmt.Sprintf("%s to have owners %v", m.Name, want), func() error {
		found, err := w.get(m)
		if err != nil {
			return err
		}
		var have []types.UID
		for _, ref := range found.OwnerReferences {
			have = append(have, ref.UID)
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			return fmt.Errorf("has %v", have)
		}
		return nil
	})
}

// hold puts a finalizer on m, letGo takes it off.
func (w *world) hold(m *corev1.ConfigMap) {
	w.Helper()
	w.patch(m, `{"metadata":{"finalizers":["example.com/hold"]}}`)
}

func (w *world) letGo(m *corev1.ConfigMap) {
	w.Helper()
	w.patch(m, `{"metadata":{"finalizers":null}}`)
}

func (w *world) patch(m *corev1.ConfigMap, patch string) {
	w.Helper()
	must(w.client.CoreV1().ConfigMaps(m.Namespace).Patch(w.ctx, m.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(w)
}

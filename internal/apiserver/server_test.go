package apiserver_test

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"mend/internal/testkit"
)

// pod returns the smallest Pod that is valid.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "mend.local/web:1.0"}}},
	}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("x").Spec},
		},
	}
}

// must ends the test unless what it is given worked.
func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		ok(t, err)
		return value
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestLoopsCreateListAndWatchEveryKindInProcess(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	client := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(s.ClientConfig("deployment")))
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, deployments := factory.Core().V1().Pods().Lister(), factory.Apps().V1().Deployments().Lister()
	replicaSets, nodes := factory.Apps().V1().ReplicaSets().Lister(), factory.Core().V1().Nodes().Lister()
	maps, leases := factory.Core().V1().ConfigMaps().Lister(), factory.Coordination().V1().Leases().Lister()
	events, namespaces := factory.Core().V1().Events().Lister(), factory.Core().V1().Namespaces().Lister()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	options := metav1.CreateOptions{}
	must[*corev1.Pod](t)(client.CoreV1().Pods("default").Create(ctx, pod("a"), options))
	d := must[*appsv1.Deployment](t)(client.AppsV1().Deployments("default").Create(ctx, deployment("web", 3), options))
	must[*appsv1.ReplicaSet](t)(client.AppsV1().ReplicaSets("default").Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template},
	}, options))
	must[*corev1.Node](t)(client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, options))
	must[*corev1.ConfigMap](t)(client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, options))
	must[*coordinationv1.Lease](t)(client.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, options))
	must[*corev1.Event](t)(client.CoreV1().Events("default").Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: "default", Name: "a", Kind: "Pod"},
	}, options))

	testkit.WaitFor(t, "the informers to have all of it", func() error {
		_, e1 := pods.Pods("default").Get("a")
		_, e2 := deployments.Deployments("default").Get("web")
		_, e3 := replicaSets.ReplicaSets("default").Get("web-1")
		_, e4 := nodes.Get("n1")
		_, e5 := maps.ConfigMaps("default").Get("c")
		_, e6 := leases.Leases("kube-node-lease").Get("n1")
		_, e7 := events.Events("default").Get("e")
		_, e8 := namespaces.Get("kube-system")
		for _, err := range []error{e1, e2, e3, e4, e5, e6, e7, e8} {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if d.Generation != 1 || d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		t.Errorf("deployment is not defaulted: generation %d, strategy %q", d.Generation, d.Spec.Strategy.Type)
	}
}

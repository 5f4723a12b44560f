package garbage

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/controller/garbage"
	"mend/internal/controller/namespace"
	"mend/internal/controller/rootca"
	"mend/internal/controller/serviceaccount"
	"mend/internal/testkit"
)

// everything is all loops of this test but podgc.
func everything(t *testing.T) *world {
	return newWorld(t, garbage.Declaration(), namespace.Declaration(), namespace.SystemDeclaration(),
		serviceaccount.Declaration(), rootca.Declaration([]byte("the CA")))
}

func (w *world) deleteNamespace(name string) {
	w.Helper()
	w.ok(w.client.CoreV1().Namespaces().Delete(w.ctx, name, metav1.DeleteOptions{}))
}

func (w *world) namespaceGoes(name string) {
	w.Helper()
	testkit.WaitFor(w, "namespace "+name+" to go", func() error {
		_, err := w.client.CoreV1().Namespaces().Get(w.ctx, name, metav1.GetOptions{})
		return isGone(err)
	})
}

// says waits until the namespace has this condition.
func (w *world) says(name string, kind corev1.NamespaceConditionType, status corev1.ConditionStatus, reason, message string) {
	w.Helper()
	testkit.WaitFor(w, fmt.Sprintf("condition %s: %s", kind, message), func() error {
		n, err := w.client.CoreV1().Namespaces().Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == kind && c.Status == status && c.Reason == reason && c.Message == message {
				return nil
			}
		}
		return fmt.Errorf("has %+v", n.Status.Conditions)
	})
}

func TestANamespaceGoesWithAllThatIsInIt(t *testing.T) {
	w := everything(t)
	w.namespace("shop")
	w.accountAppears("shop")
	for i := range 20 {
		w.configMap("shop", fmt.Sprint("m-", i))
	}
	must(w.client.CoreV1().Secrets("shop").Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}))(t)
	pod := w.pod("shop", "p", "")
	start := time.Now()
	w.deleteNamespace("shop")
	w.namespaceGoes("shop")
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	_, err := w.client.CoreV1().Pods("shop").Get(w.ctx, pod.Name, metav1.GetOptions{})
	w.ok(isGone(err))
	if left := must(w.client.CoreV1().ConfigMaps("shop").List(w.ctx, metav1.ListOptions{}))(t).Items; len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	w.namespace("shop") // the name is free again
	w.accountAppears("shop")
}

func TestATerminatingNamespaceSaysWhatRemains(t *testing.T) {
	w := everything(t)
	w.namespace("shop")
	w.accountAppears("shop")
	kept := w.configMap("shop", "kept")
	w.hold(kept)
	// It is bound, so that it has a grace; no agent ends it.
	w.pod("shop", "running", "no-such-node")
	w.deleteNamespace("shop")

	w.says("shop", corev1.NamespaceContentRemaining, corev1.ConditionTrue, "SomeResourcesRemain",
		"Some resources are remaining: pods. has 1 resource instances")
	if found := must(w.get(kept))(t); found.DeletionTimestamp != nil {
		t.Error("the rest should wait for the Pods, which may need it")
	}
	n := must(w.client.CoreV1().Namespaces().Get(w.ctx, "shop", metav1.GetOptions{}))(t)
	if n.Status.Phase != corev1.NamespaceTerminating {
		t.Errorf("phase %s", n.Status.Phase)
	}

	w.ok(w.client.CoreV1().Pods("shop").Delete(w.ctx, "running", *metav1.NewDeleteOptions(0))) // as its agent would
	w.says("shop", corev1.NamespaceContentRemaining, corev1.ConditionTrue, "SomeResourcesRemain",
		"Some resources are remaining: configmaps. has 1 resource instances")
	w.says("shop", corev1.NamespaceFinalizersRemaining, corev1.ConditionTrue, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances")
	w.says("shop", corev1.NamespaceDeletionContentFailure, corev1.ConditionFalse, "ContentDeleted",
		"All content successfully deleted, may be waiting on finalization")
	w.says("shop", corev1.NamespaceDeletionDiscoveryFailure, corev1.ConditionFalse, "ResourcesDiscovered", "All resources successfully discovered")
	w.says("shop", corev1.NamespaceDeletionGVParsingFailure, corev1.ConditionFalse, "ParsedGroupVersions", "All legacy kube types successfully parsed")

	w.letGo(kept)
	w.namespaceGoes("shop")
}

func TestANamespaceWithAForeignFinalizerWaitsForItsOwner(t *testing.T) {
	w := everything(t)
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"example.com/f", "kubernetes"}}}
	must(w.client.CoreV1().Namespaces().Create(w.ctx, n, metav1.CreateOptions{}))(t)
	w.deleteNamespace("shop")
	var left *corev1.Namespace
	testkit.WaitFor(t, "our finalizer to go", func() error {
		left = must(w.client.CoreV1().Namespaces().Get(w.ctx, "shop", metav1.GetOptions{}))(t)
		if len(left.Spec.Finalizers) != 1 || left.Spec.Finalizers[0] != "example.com/f" {
			return fmt.Errorf("has %v", left.Spec.Finalizers)
		}
		return nil
	})
	left.Spec.Finalizers = nil
	must(w.client.CoreV1().Namespaces().Finalize(w.ctx, left, metav1.UpdateOptions{}))(t)
	w.namespaceGoes("shop")
}

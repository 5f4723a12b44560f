package garbage

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"mend/internal/controller/podgc"
	"mend/internal/testkit"
)

// pod makes one; node "" leaves it unbound.
func (w *world) pod(ns, name, node string, finalizers ...string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "web", Image: "mend.local/web:1.0"}}},
	}
	return must(w.client.CoreV1().Pods(ns).Create(w.ctx, pod, metav1.CreateOptions{}))(w)
}

func (w *world) podGoes(pod *corev1.Pod) {
	w.Helper()
	testkit.WaitFor(w, "pod "+pod.Name+" to go", func() error {
		_, err := w.client.CoreV1().Pods(pod.Namespace).Get(w.ctx, pod.Name, metav1.GetOptions{})
		return isGone(err)
	})
}

func (w *world) patchPod(pod *corev1.Pod, patch string, subresources ...string) {
	w.Helper()
	must(w.client.CoreV1().Pods(pod.Namespace).Patch(w.ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...))(w)
}

func TestPodsThatNobodyElseEnds(t *testing.T) {
	w := newWorld(t)
	clk := clocktesting.NewFakeClock(time.Now())
	t.Cleanup(w.run(clk, podgc.Declaration()))
	w.namespace("shop")
	must(w.client.CoreV1().ServiceAccounts("shop").Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	node := must(w.client.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}))(t)
	must(w.client.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{}))(t)
	onLost, onOther := w.pod("shop", "on-lost", "n1", "example.com/hold"), w.pod("shop", "on-other", "n2")

	unbound := w.pod("shop", "unbound", "", "example.com/hold")
	w.ok(w.client.CoreV1().Pods("shop").Delete(w.ctx, unbound.Name, metav1.DeleteOptions{}))
	w.failed(unbound, "")
	w.patchPod(unbound, `{"metadata":{"finalizers":null}}`)
	w.podGoes(unbound)

	w.ok(w.client.CoreV1().Nodes().Delete(w.ctx, node.Name, metav1.DeleteOptions{}))
	for range 30 { // the quarantine passes in steps, whenever the loop begins to wait
		clk.Step(time.Second)
	}
	if found := must(w.client.CoreV1().Pods("shop").Get(w.ctx, onLost.Name, metav1.GetOptions{}))(t); found.DeletionTimestamp != nil || found.Status.Phase == corev1.PodFailed {
		t.Errorf("went before the quarantine was over: %v", found.Status)
	}
	testkit.WaitFor(t, "the Pod of the lost node to be deleted", func() error {
		clk.Step(time.Second)
		if found := must(w.client.CoreV1().Pods("shop").Get(w.ctx, onLost.Name, metav1.GetOptions{}))(t); found.DeletionTimestamp == nil {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	w.failed(onLost, "PodGC: node no longer exists")
	w.patchPod(onLost, `{"metadata":{"finalizers":null}}`)
	w.podGoes(onLost)

	if found := must(w.client.CoreV1().Pods("shop").Get(w.ctx, onOther.Name, metav1.GetOptions{}))(t); found.DeletionTimestamp != nil || found.Status.Phase == corev1.PodFailed {
		t.Errorf("the Pod of the other node should have been left alone: %v", found.Status)
	}
	w.ok(w.client.CoreV1().Pods("shop").Delete(w.ctx, onOther.Name, metav1.DeleteOptions{})) // its grace begins
	must(w.client.CoreV1().Nodes().Patch(w.ctx, "n2", types.MergePatchType,
		[]byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`), metav1.PatchOptions{}))(t)
	w.podGoes(onOther)
}

// failed waits until pod is marked, with DisruptionTarget when message is given.
func (w *world) failed(pod *corev1.Pod, message string) {
	w.Helper()
	testkit.WaitFor(w, "pod "+pod.Name+" to be marked", func() error {
		found, err := w.client.CoreV1().Pods(pod.Namespace).Get(w.ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := ""
		for _, c := range found.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "DeletionByPodGC" {
				got = c.Message
			}
		}
		if found.Status.Phase != corev1.PodFailed || got != message || found.DeletionGracePeriodSeconds == nil || *found.DeletionGracePeriodSeconds != 0 {
			return fmt.Errorf("has %v, grace %v", found.Status, found.DeletionGracePeriodSeconds)
		}
		return nil
	})
}

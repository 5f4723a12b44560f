package rollout

import (
	"fmt"
	"strings"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func testAdoptionAndRelease(w *world) {
	labels := map[string]string{"app": "web"}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "web:1"}}},
	}
	bare := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Labels: labels}, Spec: template.Spec}
	bare, err := w.client.CoreV1().Pods(w.namespace).Create(w.ctx, bare, metav1.CreateOptions{})
	w.must(err)
	orphan := &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: labels},
		Spec:       apps.ReplicaSetSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}
	orphan, err = w.client.AppsV1().ReplicaSets(w.namespace).Create(w.ctx, orphan, metav1.CreateOptions{})
	w.must(err)
	w.eventually("the bare Pod to be adopted and one to be added", func() error {
		pod, err := w.client.CoreV1().Pods(w.namespace).Get(w.ctx, bare.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pods := w.pods(); !metav1.IsControlledBy(pod, orphan) || len(pods) != 2 {
			return fmt.Errorf("owners %v, %d Pods", pod.OwnerReferences, len(pods))
		}
		return nil
	})

	d := w.web(2, "web:1")
	w.rolledOut()
	rs := w.replicaSet("web:1")
	if rs.Name != "orphan" || !metav1.IsControlledBy(rs, d) || rs.Annotations["deployment.kubernetes.io/revision"] != "1" {
		w.Errorf("ReplicaSet %s, owners %v, annotations %v", rs.Name, rs.OwnerReferences, rs.Annotations)
	}

	_, err = w.client.CoreV1().Pods(w.namespace).Patch(w.ctx, bare.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"debug"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.eventually("the Pod to be released and replaced", func() error {
		pod, err := w.client.CoreV1().Pods(w.namespace).Get(w.ctx, bare.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pods := w.pods(); len(pod.OwnerReferences) != 0 || len(pods) != 3 {
			return fmt.Errorf("owners %v, %d Pods", pod.OwnerReferences, len(pods))
		}
		return nil
	})
	w.rolledOut()
}

func testRefusedPods(w *world) {
	w.web(3, "web:1", func(d *apps.Deployment) { d.Spec.Template.Spec.ServiceAccountName = "runner" })
	c := w.waitsFor(apps.DeploymentReplicaFailure, "FailedCreate")
	if want := fmt.Sprintf("error looking up service account %s/runner", w.namespace); !strings.Contains(c.Message, want) {
		w.Errorf("message %q, want %q in it", c.Message, want)
	}
	rs := w.replicaSet("web:1")
	if rs.Status.ObservedGeneration != rs.Generation || rs.Status.Replicas != 0 {
		w.Errorf("ReplicaSet status %+v", rs.Status)
	}
	w.hasEvent("ReplicaSet", "FailedCreate", "Error creating: pods \""+rs.Name+"-")
	_, err := w.client.CoreV1().ServiceAccounts(w.namespace).Create(w.ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "runner"}}, metav1.CreateOptions{})
	w.must(err)
	if c := conditionOf(w.rolledOut(), apps.DeploymentReplicaFailure); c.Type != "" {
		w.Errorf("condition %+v is still there", c)
	}
}

func testMinReadySeconds(w *world) {
	w.web(2, "web:1", func(d *apps.Deployment) { d.Spec.MinReadySeconds = 2 })
	w.eventually("2 ready Pods", func() error {
		if got := w.deployment().Status; got.ReadyReplicas != 2 {
			return fmt.Errorf("status %+v", got)
		}
		return nil
	})
	if got := w.deployment().Status; got.AvailableReplicas != 0 || got.UnavailableReplicas != 2 {
		w.Errorf("status %+v before minReadySeconds are over", got)
	}
	w.rolledOut()
}

func testDeletionCost(w *world) {
	w.web(3, "web:1")
	w.rolledOut()
	keep := w.pods()[1].Name
	_, err := w.client.CoreV1().Pods(w.namespace).Patch(w.ctx, keep, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"100"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.edit(scaleTo(1))
	w.rolledOut()
	if pods := w.pods(); len(pods) != 1 || pods[0].Name != keep {
		w.Errorf("%d Pods are left, the first is %s; want %s", len(pods), pods[0].Name, keep)
	}
}

func testSelfHealing(w *world) {
	w.web(3, "web:1")
	w.rolledOut()
	pods := w.pods()
	w.must(w.client.CoreV1().Pods(w.namespace).Delete(w.ctx, pods[0].Name, metav1.DeleteOptions{}))
	failed := pods[1]
	failed.Status.Phase = v1.PodFailed
	_, err := w.client.CoreV1().Pods(w.namespace).UpdateStatus(w.ctx, &failed, metav1.UpdateOptions{})
	w.must(err)
	w.eventually("two new Pods", func() error {
		running := 0
		for _, pod := range w.pods() {
			if pod.Status.Phase == v1.PodRunning {
				running++
			}
		}
		if running != 3 {
			return fmt.Errorf("%d running", running)
		}
		return nil
	})
	w.rolledOut()
}

func testReplicaSetAlone(w *world) {
	labels := map[string]string{"app": "alone"}
	rs := &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "alone"},
		Spec: apps.ReplicaSetSpec{
			Replicas: ptr.To[int32](70), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "web:1"}}}},
		},
	}
	_, err := w.client.AppsV1().ReplicaSets(w.namespace).Create(w.ctx, rs, metav1.CreateOptions{})
	w.must(err)
	has := func(n int32) func() error {
		return func() error {
			got := w.replicaSet("web:1")
			want := apps.ReplicaSetStatus{ObservedGeneration: got.Generation, Replicas: n, FullyLabeledReplicas: n, ReadyReplicas: n, AvailableReplicas: n, TerminatingReplicas: ptr.To[int32](0)}
			if pods := w.pods(); len(pods) != int(n) || got.Status.String() != want.String() {
				return fmt.Errorf("%d Pods, status %+v", len(pods), got.Status)
			}
			return nil
		}
	}
	w.eventually("70 Pods", has(70))
	scale, err := w.client.AppsV1().ReplicaSets(w.namespace).GetScale(w.ctx, "alone", metav1.GetOptions{})
	w.must(err)
	scale.Spec.Replicas = 7
	_, err = w.client.AppsV1().ReplicaSets(w.namespace).UpdateScale(w.ctx, "alone", scale, metav1.UpdateOptions{})
	w.must(err)
	w.eventually("7 Pods", has(7))
}

func testNamespaceEnds(w *world) {
	w.web(2, "web:1")
	w.rolledOut()
	w.must(w.client.CoreV1().Namespaces().Delete(w.ctx, w.namespace, metav1.DeleteOptions{}))
	w.must(w.client.CoreV1().Pods(w.namespace).Delete(w.ctx, w.pods()[0].Name, metav1.DeleteOptions{}))
	w.eventually("the Pod to be missed", func() error {
		if got := w.replicaSet("web:1").Status; got.Replicas != 1 || ptr.Deref(got.TerminatingReplicas, -1) != 0 {
			return fmt.Errorf("status %+v", got)
		}
		return nil
	})
	if conditions := w.replicaSet("web:1").Status.Conditions; len(conditions) != 0 {
		w.Errorf("conditions %+v", conditions)
	}
}

package garbage

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"mend/internal/controller/garbage"
	"mend/internal/testkit"
)

// TestCascades shares one server; each case has a namespace of its own.
func TestCascades(t *testing.T) {
	w := newWorld(t, garbage.Declaration())
	cases := map[string]func(*world, string){
		"background":             backgroundCascade,
		"foreground":             foregroundCascade,
		"orphan":                 orphanCascade,
		"two-owners":             twoOwners,
		"foreground-two-owners":  foregroundWithAnotherOwner,
		"foreground-circle":      foregroundCircle,
		"absent-owner":           absentOwner,
		"wrong-uid":              ownerOfTheSameName,
		"unknown-kind":           ownerOfUnknownKind,
		"other-namespace":        ownerInAnotherNamespace,
		"finalizers-beforehand":  finalizersBeforehand,
		"replicasets-and-pods":   replicaSetAndPods,
		"cluster-scoped-owner":   clusterScopedOwner,
		"busy-dependent":         busyDependent,
		"unblocked-by-reference": unblockedByReference,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := *w
			inner.T, inner.ctx = t, t.Context()
			inner.namespace(name)
			run(&inner, name)
		})
	}
}

func backgroundCascade(w *world, ns string) {
	top := w.configMap(ns, "top")
	middle := w.configMap(ns, "middle", ownedBy(top))
	leaf := w.configMap(ns, "leaf", ownedBy(middle))
	free := w.configMap(ns, "free")
	w.erase(top, metav1.DeletePropagationBackground)
	w.goes(top, middle, leaf)
	w.stays(free)
}

func foregroundCascade(w *world, ns string) {
	top := w.configMap(ns, "top")
	middle := w.configMap(ns, "middle", blocking(top))
	leaf := w.configMap(ns, "leaf", blocking(middle))
	loose := w.configMap(ns, "loose", ownedBy(top))
	w.hold(leaf)
	w.hold(loose)
	w.erase(top, metav1.DeletePropagationForeground)
	for _, m := range []*corev1.ConfigMap{leaf, loose} {
		testkit.WaitFor(w, m.Name+" to be deleted", func() error {
			found, err := w.get(m)
			if err == nil && found.DeletionTimestamp == nil {
				return fmt.Errorf("not yet")
			}
			return err
		})
	}
	for _, m := range []*corev1.ConfigMap{top, middle} {
		found := must(w.get(m))(w)
		if found.DeletionTimestamp == nil || !slices.Contains(found.Finalizers, "foregroundDeletion") {
			w.Errorf("%s should wait for its dependents: %v", m.Name, found.ObjectMeta)
		}
	}
	w.letGo(leaf)
	w.goes(leaf, middle, top) // loose does not block
	w.letGo(loose)
	w.goes(loose)
}

func orphanCascade(w *world, ns string) {
	top, other := w.configMap(ns, "top"), w.configMap(ns, "other")
	var children []*corev1.ConfigMap
	for i := range 10 {
		children = append(children, w.configMap(ns, fmt.Sprint("child-", i), blocking(top), ownedBy(other)))
	}
	w.erase(top, metav1.DeletePropagationOrphan)
	w.goes(top)
	for _, m := range children {
		w.hasOwners(m, other.UID)
	}
	w.stays(append(children, other)...)
}

func twoOwners(w *world, ns string) {
	one, two := w.configMap(ns, "one"), w.configMap(ns, "two")
	shared := w.configMap(ns, "shared", ownedBy(one), ownedBy(two))
	w.erase(one, metav1.DeletePropagationBackground)
	w.hasOwners(shared, two.UID)
	w.stays(shared)
	w.erase(two, metav1.DeletePropagationBackground)
	w.goes(shared)
}

func foregroundWithAnotherOwner(w *world, ns string) {
	one, two := w.configMap(ns, "one"), w.configMap(ns, "two")
	shared := w.configMap(ns, "shared", blocking(one), ownedBy(two))
	w.erase(one, metav1.DeletePropagationForeground)
	w.goes(one)
	w.hasOwners(shared, two.UID)
	w.stays(shared)
}

func foregroundCircle(w *world, ns string) {
	a := w.configMap(ns, "a")
	b := w.configMap(ns, "b", blocking(a))
	c := w.configMap(ns, "c", blocking(b))
	w.patch(a, fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":%q,"blockOwnerDeletion":true}]}}`, c.UID))
	w.erase(a, metav1.DeletePropagationForeground)
	w.goes(a, b, c)
}

func absentOwner(w *world, ns string) {
	gone := w.configMap(ns, "gone")
	w.erase(gone, metav1.DeletePropagationBackground)
	w.goes(gone)
	w.goes(w.configMap(ns, "late", ownedBy(gone)))
}

func ownerOfTheSameName(w *world, ns string) {
	real := w.configMap(ns, "owner")
	imposter := ownedBy(real)
	imposter.UID = "00000000-0000-0000-0000-000000000000"
	w.goes(w.configMap(ns, "of-an-earlier-one", imposter))
	w.stays(w.configMap(ns, "of-this-one", ownedBy(real)), real)
}

func ownerOfUnknownKind(w *world, ns string) {
	unknown := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: "1"}
	m := w.configMap(ns, "of-a-widget", unknown)
	gone := w.configMap(ns, "gone")
	alsoOwned := w.configMap(ns, "of-both", unknown, ownedBy(gone))
	w.erase(gone, metav1.DeletePropagationBackground)
	w.hasOwners(alsoOwned, "1")
	w.stays(m, alsoOwned)
}

func ownerInAnotherNamespace(w *world, ns string) {
	w.namespace(ns + "-2")
	far := w.configMap(ns+"-2", "far")
	stray := w.configMap(ns, "stray", ownedBy(far))
	w.goes(stray)
	w.stays(far)
	testkit.WaitFor(w, "the event", func() error {
		events, err := w.client.CoreV1().Events(ns).List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=stray"})
		if err != nil {
			return err
		}
		want := fmt.Sprintf("ownerRef [v1/ConfigMap, namespace: %s, name: far, uid: %s] does not exist in namespace %q", ns, far.UID, ns)
		for _, e := range events.Items {
			if e.Reason == "OwnerRefInvalidNamespace" && e.Type == "Warning" && e.Message == want && e.Source.Component == "garbage-collector-controller" {
				return nil
			}
		}
		return fmt.Errorf("events: %v", events.Items)
	})
}

// finalizersBeforehand: someone put "orphan" on an object before its owner went.
func finalizersBeforehand(w *world, ns string) {
	top := w.configMap(ns, "top")
	middle := w.configMap(ns, "middle", ownedBy(top))
	w.patch(middle, `{"metadata":{"finalizers":["orphan"]}}`)
	leaf := w.configMap(ns, "leaf", ownedBy(middle))
	w.erase(top, metav1.DeletePropagationBackground)
	w.goes(middle)
	w.hasOwners(leaf)
	w.stays(leaf)
}

func replicaSetAndPods(w *world, ns string) {
	must(w.client.CoreV1().ServiceAccounts(ns).Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(w)
	labels := map[string]string{"app": "web"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "mend.local/web:1.0"}}},
	}
	rs := must(w.client.AppsV1().ReplicaSets(ns).Create(w.ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{}))(w)
	for range 20 {
		pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.GenerateName = "web-"
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		must(w.client.CoreV1().Pods(ns).Create(w.ctx, pod, metav1.CreateOptions{}))(w)
	}
	foreground := metav1.DeletePropagationForeground
	w.ok(w.client.AppsV1().ReplicaSets(ns).Delete(w.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	testkit.WaitFor(w, "the ReplicaSet to go", func() error {
		_, err := w.client.AppsV1().ReplicaSets(ns).Get(w.ctx, "web", metav1.GetOptions{})
		return isGone(err)
	})
	if left := must(w.client.CoreV1().Pods(ns).List(w.ctx, metav1.ListOptions{}))(w).Items; len(left) > 0 {
		w.Errorf("%d Pods outlived the ReplicaSet that they block", len(left))
	}
}

func clusterScopedOwner(w *world, ns string) {
	node := must(w.client.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))(w)
	m := w.configMap(ns, "of-a-node", metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID})
	w.ok(w.client.CoreV1().Nodes().Delete(w.ctx, node.Name, metav1.DeleteOptions{}))
	w.goes(m)
}

// busyDependent is written to all the time, so every resourceVersion that the
// loop judged it at is outdated soon.
func busyDependent(w *world, ns string) {
	top := w.configMap(ns, "top")
	busy := w.configMap(ns, "busy", ownedBy(top))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; w.ctx.Err() == nil; i++ {
			patch := fmt.Sprintf(`{"data":{"i":"%d"}}`, i)
			if _, err := w.client.CoreV1().ConfigMaps(ns).Patch(w.ctx, "busy", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				return
			}
		}
	}()
	w.erase(top, metav1.DeletePropagationBackground)
	w.goes(busy)
	<-stopped
}

func unblockedByReference(w *world, ns string) {
	top := w.configMap(ns, "top")
	held := w.configMap(ns, "held", blocking(top))
	w.hold(held)
	w.erase(top, metav1.DeletePropagationForeground)
	testkit.WaitFor(w, "the dependent to be deleted", func() error {
		if found := must(w.get(held))(w); found.DeletionTimestamp == nil {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	w.patch(held, fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"top","uid":%q}]}}`, top.UID))
	w.goes(top)
	w.letGo(held)
	w.goes(held)
}

// TestWorkGoesOnAfterACrash ends the loop where it stands, lets things happen
// without it, and starts a new one.
func TestWorkGoesOnAfterACrash(t *testing.T) {
	w := newWorld(t)
	stop := w.run(clock.RealClock{}, garbage.Declaration())
	w.namespace("shop")
	front, orphaner, owner := w.configMap("shop", "front"), w.configMap("shop", "orphaner"), w.configMap("shop", "owner")
	blocker := w.configMap("shop", "blocker", blocking(front))
	orphan := w.configMap("shop", "orphan", blocking(orphaner))
	w.hold(blocker)
	w.erase(front, metav1.DeletePropagationForeground)
	testkit.WaitFor(t, "the cascade to begin", func() error {
		if found := must(w.get(blocker))(t); found.DeletionTimestamp == nil {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	stop()
	w.letGo(blocker)
	w.erase(orphaner, metav1.DeletePropagationOrphan)
	dependent := w.configMap("shop", "dependent", ownedBy(owner))
	w.erase(owner, metav1.DeletePropagationBackground)
	t.Cleanup(w.run(clock.RealClock{}, garbage.Declaration()))
	w.goes(front, blocker, orphaner, owner, dependent)
	w.hasOwners(orphan)
	w.stays(orphan)
}

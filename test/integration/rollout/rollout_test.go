package rollout

import (
	"fmt"
	"maps"
	"regexp"
	"testing"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestRollout(t *testing.T) {
	c := newCluster(t)
	t.Cleanup(c.startLoops(t))
	for name, test := range map[string]func(*world){
		"scale":                       testScale,
		"rolling update":              testRollingUpdate,
		"fifteen replicas":            testFifteenReplicas,
		"recreate":                    testRecreate,
		"pause and resume":            testPauseAndResume,
		"undo":                        testUndo,
		"progress deadline":           testProgressDeadline,
		"adoption and release":        testAdoptionAndRelease,
		"refused Pods":                testRefusedPods,
		"minReadySeconds":             testMinReadySeconds,
		"history limit":               testHistoryLimit,
		"collision":                   testCollision,
		"deletion cost":               testDeletionCost,
		"change cause":                testChangeCause,
		"generation and conditions":   testGenerationAndConditions,
		"proportional scaling":        testProportionalScaling,
		"a Pod deleted or failed":     testSelfHealing,
		"a ReplicaSet on its own":     testReplicaSetAlone,
		"an ended namespace is quiet": testNamespaceEnds,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(c.newWorld(t))
		})
	}
}

func testScale(w *world) {
	w.web(3, "web:1")
	d := w.rolledOut()
	rs := w.replicaSet("web:1")
	if want := "web-" + rs.Labels["pod-template-hash"]; rs.Name != want {
		w.Errorf("ReplicaSet %s, want %s", rs.Name, want)
	}
	pattern := regexp.MustCompile(`^` + rs.Name + `-[a-z0-9]{5}$`)
	for _, pod := range w.pods() {
		if !pattern.MatchString(pod.Name) {
			w.Errorf("Pod %s does not look like %s-xxxxx", pod.Name, rs.Name)
		}
	}
	if d.Annotations["deployment.kubernetes.io/revision"] != "1" || d.Generation != 1 {
		w.Errorf("revision %q, generation %d", d.Annotations["deployment.kubernetes.io/revision"], d.Generation)
	}
	progressing := conditionOf(d, apps.DeploymentProgressing)
	if want := fmt.Sprintf("ReplicaSet %q has successfully progressed.", rs.Name); progressing.Message != want {
		w.Errorf("message %q, want %q", progressing.Message, want)
	}
	w.hasEvent("Deployment", "ScalingReplicaSet", "Scaled up replica set "+rs.Name+" from 0 to 3")
	w.hasEvent("ReplicaSet", "SuccessfulCreate", "Created pod: "+rs.Name+"-")

	w.edit(scaleTo(5))
	w.rolledOut()
	w.hasEvent("Deployment", "ScalingReplicaSet", "Scaled up replica set "+rs.Name+" from 3 to 5")
	w.edit(scaleTo(2))
	w.rolledOut()
	w.hasEvent("Deployment", "ScalingReplicaSet", "Scaled down replica set "+rs.Name+" from 5 to 2")
	w.hasEvent("ReplicaSet", "SuccessfulDelete", "Deleted pod: "+rs.Name+"-")
	w.edit(scaleTo(0))
	if d = w.rolledOut(); d.Annotations["deployment.kubernetes.io/revision"] != "1" {
		w.Errorf("scaling made revision %q", d.Annotations["deployment.kubernetes.io/revision"])
	}
	if pods := w.pods(); len(pods) != 0 {
		w.Errorf("%d Pods of 0", len(pods))
	}
}

func testRollingUpdate(w *world) {
	w.web(4, "web:1", func(d *apps.Deployment) {
		d.Spec.Strategy.RollingUpdate = &apps.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0))}
	})
	w.rolledOut()
	check := w.watchBounds(4, 5)
	w.edit(setImage("web:2"))
	d := w.rolledOut()
	check()
	old, current := w.replicaSet("web:1"), w.replicaSet("web:2")
	if *old.Spec.Replicas != 0 || *current.Spec.Replicas != 4 {
		w.Errorf("sizes %d and %d", *old.Spec.Replicas, *current.Spec.Replicas)
	}
	if d.Annotations["deployment.kubernetes.io/revision"] != "2" || current.Annotations["deployment.kubernetes.io/revision"] != "2" {
		w.Errorf("revisions %q and %q", d.Annotations["deployment.kubernetes.io/revision"], current.Annotations["deployment.kubernetes.io/revision"])
	}
	if available := conditionOf(d, apps.DeploymentAvailable); available.Reason != "MinimumReplicasAvailable" {
		w.Errorf("Available is %+v", available)
	}

	// What is no template change starts no rollout.
	w.edit(func(d *apps.Deployment) { d.Labels = map[string]string{"team": "a"}; d.Spec.MinReadySeconds = 1 })
	d = w.rolledOut()
	if d.Annotations["deployment.kubernetes.io/revision"] != "2" || w.replicaSet("web:2").Spec.MinReadySeconds != 1 {
		w.Errorf("revision %q, minReadySeconds %d", d.Annotations["deployment.kubernetes.io/revision"], w.replicaSet("web:2").Spec.MinReadySeconds)
	}
}

// k#95498, with shutdowns that take longer than the rollout.
func testFifteenReplicas(w *world) {
	w.web(15, "web:1")
	w.rolledOut()
	w.agent.hold(w.namespace, true)
	check := w.watchBounds(12, 19)
	w.edit(setImage("web:2"))
	w.rolledOut()
	check()
	w.eventually("15 terminating Pods to be told", func() error {
		if got := w.deployment().Status.TerminatingReplicas; ptr.Deref(got, -1) != 15 {
			return fmt.Errorf("terminatingReplicas %d", ptr.Deref(got, -1))
		}
		return nil
	})
	w.agent.hold(w.namespace, false)
	w.eventually("no terminating Pods", func() error {
		if got := w.deployment().Status.TerminatingReplicas; ptr.Deref(got, -1) != 0 {
			return fmt.Errorf("terminatingReplicas %d", ptr.Deref(got, -1))
		}
		return nil
	})
}

func testRecreate(w *world) {
	w.web(3, "web:1", func(d *apps.Deployment) {
		d.Spec.Strategy = apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
	})
	w.rolledOut()
	w.agent.hold(w.namespace, true)
	w.edit(setImage("web:2"))
	w.eventually("the old Pods to be on their way out", func() error {
		if d := w.deployment(); d.Status.Replicas != 0 || d.Status.ObservedGeneration != d.Generation || ptr.Deref(d.Status.TerminatingReplicas, 0) != 3 {
			return fmt.Errorf("status %+v", d.Status)
		}
		return nil
	})
	if rs := w.replicaSet("web:2"); rs != nil {
		w.Errorf("ReplicaSet %s was made while old Pods run", rs.Name)
	}
	w.agent.hold(w.namespace, false)
	w.rolledOut()
	for _, pod := range w.pods() {
		if pod.Spec.Containers[0].Image != "web:2" {
			w.Errorf("Pod %s has image %s", pod.Name, pod.Spec.Containers[0].Image)
		}
	}
}

func testPauseAndResume(w *world) {
	w.web(3, "web:1")
	w.rolledOut()
	w.edit(func(d *apps.Deployment) { d.Spec.Paused = true })
	if c := w.waitsFor(apps.DeploymentProgressing, "DeploymentPaused"); c.Status != v1.ConditionUnknown || c.Message != "Deployment is paused" {
		w.Errorf("condition %+v", c)
	}
	check := w.watchBounds(3, 5)
	d := w.edit(func(d *apps.Deployment) { setImage("web:2")(d); scaleTo(5)(d) })
	w.eventually("the size to follow while paused", func() error {
		if now := w.deployment(); now.Status.AvailableReplicas != 5 || now.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("status %+v", now.Status)
		}
		return nil
	})
	if rs := w.replicaSet("web:2"); rs != nil {
		w.Errorf("ReplicaSet %s was made while paused", rs.Name)
	}
	check()
	w.edit(func(d *apps.Deployment) { d.Spec.Paused = false })
	w.rolledOut()
}

func testUndo(w *world) {
	w.web(3, "web:1")
	w.rolledOut()
	w.edit(setImage("web:bad"))
	w.eventually("the bad Pod", func() error {
		if rs := w.replicaSet("web:bad"); rs == nil || rs.Status.Replicas != 1 {
			return fmt.Errorf("ReplicaSet %+v", rs)
		}
		return nil
	})
	check := w.watchBounds(3, 4)
	w.edit(setImage("web:1"))
	d := w.rolledOut()
	check()
	rs := w.replicaSet("web:1")
	annotations := map[string]string{}
	for _, key := range []string{"revision", "revision-history"} {
		annotations[key] = rs.Annotations["deployment.kubernetes.io/"+key]
	}
	if want := map[string]string{"revision": "3", "revision-history": "1"}; !maps.Equal(annotations, want) {
		w.Errorf("annotations %v, want %v", annotations, want)
	}
	if d.Annotations["deployment.kubernetes.io/revision"] != "3" || *w.replicaSet("web:bad").Spec.Replicas != 0 {
		w.Errorf("revision %q, the bad one wants %d Pods", d.Annotations["deployment.kubernetes.io/revision"], *w.replicaSet("web:bad").Spec.Replicas)
	}
}

func testProgressDeadline(w *world) {
	w.web(3, "web:1", func(d *apps.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](1) })
	w.rolledOut()
	check := w.watchBounds(3, 4)
	w.edit(setImage("web:bad"))
	c := w.waitsFor(apps.DeploymentProgressing, "ProgressDeadlineExceeded")
	if want := fmt.Sprintf("ReplicaSet %q has timed out progressing.", w.replicaSet("web:bad").Name); c.Status != v1.ConditionFalse || c.Message != want {
		w.Errorf("condition %+v, want %q", c, want)
	}
	w.edit(setImage("web:3"))
	w.rolledOut()
	check()
}

func testHistoryLimit(w *world) {
	w.web(1, "web:1", func(d *apps.Deployment) { d.Spec.RevisionHistoryLimit = ptr.To[int32](1) })
	w.rolledOut()
	for _, image := range []string{"web:2", "web:3"} {
		w.edit(setImage(image))
		w.rolledOut()
	}
	w.eventually("the oldest ReplicaSet to go", func() error {
		if w.replicaSet("web:1") != nil {
			return fmt.Errorf("it is there")
		}
		return nil
	})
	if w.replicaSet("web:2") == nil {
		w.Error("the one ReplicaSet of the history is gone")
	}
}

func testCollision(w *world) {
	w.web(1, "web:1", func(d *apps.Deployment) { d.Spec.Paused = true })
	w.waitsFor(apps.DeploymentProgressing, "DeploymentPaused")
	w.edit(func(d *apps.Deployment) { d.Spec.Paused = false })
	w.rolledOut()
	name := w.replicaSet("web:1").Name
	w.must(w.client.AppsV1().Deployments(w.namespace).Delete(w.ctx, "web", metav1.DeleteOptions{}))
	w.must(w.client.AppsV1().ReplicaSets(w.namespace).Delete(w.ctx, name, metav1.DeleteOptions{}))
	w.must(w.client.CoreV1().Pods(w.namespace).DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	w.eventually("the ReplicaSet to be gone", func() error {
		if rs := w.replicaSet("web:1"); rs != nil {
			return fmt.Errorf("%s is there", rs.Name)
		}
		return nil
	})
	other := map[string]string{"app": "other"}
	squatter := &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: other},
		Spec: apps.ReplicaSetSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: other},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: other}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "squat"}}}},
		},
	}
	_, err := w.client.AppsV1().ReplicaSets(w.namespace).Create(w.ctx, squatter, metav1.CreateOptions{})
	w.must(err)
	w.web(1, "web:1")
	d := w.rolledOut()
	if got := ptr.Deref(d.Status.CollisionCount, 0); got != 1 || w.replicaSet("web:1").Name == name {
		w.Errorf("collisionCount %d, ReplicaSet %s", got, w.replicaSet("web:1").Name)
	}
}

// k#111732
func testChangeCause(w *world) {
	const cause = "kubernetes.io/change-cause"
	w.web(1, "web:1", func(d *apps.Deployment) { d.Annotations = map[string]string{cause: "image 1"} })
	w.rolledOut()
	w.edit(setImage("web:2"))
	w.rolledOut()
	causes := func() string {
		return w.replicaSet("web:1").Annotations[cause] + ", " + w.replicaSet("web:2").Annotations[cause]
	}
	if got := causes(); got != "image 1, " {
		w.Errorf("causes %q after an update without one", got)
	}
	w.edit(func(d *apps.Deployment) { d.Annotations[cause] = "image 2" })
	w.eventually("the cause to reach its revision", func() error {
		if got := causes(); got != "image 1, image 2" {
			return fmt.Errorf("causes %q", got)
		}
		return nil
	})
}

// A new observedGeneration never appears with the conditions of the one before.
func testGenerationAndConditions(w *world) {
	w.web(2, "web:1", func(d *apps.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](1) })
	d := w.rolledOut()
	watcher, err := w.client.AppsV1().Deployments(w.namespace).Watch(w.ctx, metav1.ListOptions{ResourceVersion: d.ResourceVersion})
	w.must(err)
	defer watcher.Stop()
	for _, image := range []string{"web:bad", "web:3", "web:1"} {
		d := w.edit(setImage(image))
		for event := range watcher.ResultChan() {
			seen := event.Object.(*apps.Deployment)
			if seen.Status.ObservedGeneration != d.Generation {
				continue
			}
			c := conditionOf(seen, apps.DeploymentProgressing)
			if c.Status != v1.ConditionTrue || c.Reason == "NewReplicaSetAvailable" {
				w.Errorf("generation %d (%s) appears with %+v", d.Generation, image, c)
			}
			break
		}
		if image == "web:bad" {
			w.waitsFor(apps.DeploymentProgressing, "ProgressDeadlineExceeded")
		}
	}
	w.rolledOut()
}

func testProportionalScaling(w *world) {
	w.web(10, "web:1", func(d *apps.Deployment) {
		d.Spec.Strategy.RollingUpdate = &apps.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(3)), MaxUnavailable: ptr.To(intstr.FromInt32(2))}
	})
	w.rolledOut()
	w.edit(setImage("web:bad"))
	sizes := func(old, bad int32) func() error {
		return func() error {
			first, second := w.replicaSet("web:1"), w.replicaSet("web:bad")
			if second == nil || first.Status.Replicas != old || second.Status.Replicas != bad || *first.Spec.Replicas != old || *second.Spec.Replicas != bad {
				return fmt.Errorf("old %+v, bad %+v", first.Status, second)
			}
			return nil
		}
	}
	w.eventually("the rollout to be stuck at 8 and 5", sizes(8, 5))
	w.edit(scaleTo(30))
	w.eventually("30 + 3 in proportion 8 : 5", sizes(20, 13))
}

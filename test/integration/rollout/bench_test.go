package rollout

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"mend/internal/testkit"
)

// BenchmarkRollout times a Deployment of 200 Pods: out, to the next template, and
// away; and counts what it writes. A Pod's own life is 3 writes up (create, bind,
// ready) and 2 down, each here without a disk to wait for, plus its events.
func BenchmarkRollout(b *testing.B) {
	const replicas = 200
	c := &cluster{server: testkit.StartAPIServer(b)}
	c.client = c.server.Client
	c.agent = startAgent(b, c.client)
	defer c.startLoops(b)()
	deployments := c.client.AppsV1().Deployments("default")
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "web:0"}}},
	}
	d, err := deployments.Create(b.Context(), &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: apps.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	version, first := 0, revisionOf(b, d)
	// change changes the Deployment and waits until it is rolled out.
	change := func(what string, edit func(*apps.Deployment)) {
		began := time.Now()
		testkit.WaitFor(b, "the change to be taken", func() error {
			if d, err = deployments.Get(b.Context(), "web", metav1.GetOptions{}); err != nil {
				return err
			}
			edit(d)
			d, err = deployments.Update(b.Context(), d, metav1.UpdateOptions{})
			return err
		})
		testkit.WaitFor(b, what, func() error {
			d, err = deployments.Get(b.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != *d.Spec.Replicas || s.Replicas != s.UpdatedReplicas || s.AvailableReplicas != s.Replicas {
				return fmt.Errorf("status %+v", d.Status)
			}
			return nil
		})
		b.ReportMetric(float64(time.Since(began).Milliseconds()), what+"-ms")
	}
	b.ResetTimer()
	for b.Loop() {
		version++
		change("out", scaleTo(replicas))
		change("roll", setImage(fmt.Sprintf("web:%d", version)))
		change("away", scaleTo(0))
	}
	b.StopTimer()
	b.ReportMetric(float64(revisionOf(b, d)-first)/float64(b.N*2*replicas), "writes/Pod")
}

// revisionOf is the store's revision when the Deployment was written last.
func revisionOf(b *testing.B, d *apps.Deployment) int64 {
	n, err := strconv.ParseInt(d.ResourceVersion, 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkHeal times what the ReplicaSet loop adds to a heal: from the answer to
// a Pod's deletion until its replacement is in the API.
func BenchmarkHeal(b *testing.B) {
	c := &cluster{server: testkit.StartAPIServer(b)}
	c.client = c.server.Client
	c.agent = startAgent(b, c.client)
	defer c.startLoops(b)()
	labels := map[string]string{"app": "heal"}
	_, err := c.client.AppsV1().ReplicaSets("default").Create(b.Context(), &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "heal"},
		Spec: apps.ReplicaSetSpec{
			Replicas: ptr.To[int32](10), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "web:1"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	pods := c.client.CoreV1().Pods("default")
	watcher, err := pods.Watch(b.Context(), metav1.ListOptions{LabelSelector: "app=heal"})
	if err != nil {
		b.Fatal(err)
	}
	defer watcher.Stop()
	created := func() *v1.Pod {
		for event := range watcher.ResultChan() {
			if pod := event.Object.(*v1.Pod); event.Type == "ADDED" {
				return pod
			}
		}
		b.Fatal("the watch ended")
		return nil
	}
	var newest *v1.Pod
	for range 10 {
		newest = created()
	}
	for b.Loop() {
		if err := pods.Delete(b.Context(), newest.Name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		newest = created()
	}
}

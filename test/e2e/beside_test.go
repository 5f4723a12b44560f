package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// besideReal are Deployments of the sample image: one for the real node, one for the
// simulated ones, which leaves a node that is lost as soon as it may.
const besideReal = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: one}
spec:
  replicas: 1
  selector: {matchLabels: {app: one}}
  template:
    metadata: {labels: {app: one}}
    spec:
      nodeSelector: {kubernetes.io/hostname: real}
      containers:
      - {name: web, image: "mend.local/web:1.0"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 100
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      nodeSelector: {mend.local/simulated: "true"}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      containers:
      - {name: web, image: "mend.local/web:1.0"}
`

// twoLost is a behaviour: two of the simulated nodes lose their power for good. With
// more than half of all nodes lost, nobody would be evicted.
const twoLost = `
nodes:
- {name: real-0, lost: {after: 100ms, power: true}}
- {name: real-1, lost: {after: 100ms, power: true}}
`

// TestSimulatedNodesBesideARealOne come, carry Pods, get lost and go, and a real Pod
// runs on through all of it.
func TestSimulatedNodesBesideARealOne(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start("--node-name", "real")
	c.simulate("4")
	c.mustApply(besideReal)
	c.mustKubectl("rollout", "status", "deployment/one", "--timeout=60s")
	c.available("many", 100)
	real := c.onlyPod("one")
	if real.Spec.NodeName != "real" {
		t.Fatalf("Pod %s is on node %s", real.Name, real.Spec.NodeName)
	}
	c.tell(&real, "/slow?ms=0")
	c.mustKubectl("scale", "deployment/many", "--replicas=150")
	c.available("many", 150)
	c.mustKubectl("scale", "deployment/many", "--replicas=100")
	c.available("many", 100)
	if on := c.nodesOf("many"); on["real"] > 0 || len(on) != 4 {
		t.Errorf("Pods by node: %v", on)
	}

	behaviour := filepath.Join(c.dir, "behaviour.yaml")
	if err := os.WriteFile(behaviour, []byte(twoLost), 0o600); err != nil {
		t.Fatal(err)
	}
	c.simulate("4", "--behaviour", behaviour)
	c.eventually("two nodes are lost", func() string {
		got := c.readyNodes()
		return cmp.Diff(map[string]corev1.ConditionStatus{"real": "True", "real-0": "Unknown", "real-1": "Unknown",
			"real-2": "True", "real-3": "True"}, got)
	})
	c.eventually("their Pods are elsewhere", func() string {
		on := c.nodesOf("many")
		return want(on["real"] == 0 && on["real-2"]+on["real-3"] == 100, "Pods by node: %v", on)
	})
	c.available("many", 100)
	c.untouched(real)

	c.simulate("0")
	if diff := cmp.Diff(map[string]corev1.ConditionStatus{"real": "True"}, c.readyNodes()); diff != "" {
		t.Errorf("nodes: %s", diff)
	}
	c.eventually("no other Pod is anywhere", func() string {
		on := c.nodesOf("many")
		return want(on[""] == 100 && len(on) == 1, "Pods by node: %v", on)
	})
	c.untouched(real)
}

// simulate brings the cluster to so many simulated nodes.
func (c *cluster) simulate(nodes string, flags ...string) {
	c.t.Helper()
	if got := c.run(append([]string{"simulate", "nodes", nodes, "--data-dir", c.data()}, flags...)...); got.code != 0 {
		c.t.Fatalf("mend simulate nodes %s: %+v", nodes, got)
	}
}

// available waits until a Deployment has exactly so many Pods and all are available.
func (c *cluster) available(name string, replicas int32) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("%d of %s are available", replicas, name), func() string {
		deployment, err := c.client.AppsV1().Deployments("default").Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		got := appsv1.DeploymentStatus{ObservedGeneration: deployment.Status.ObservedGeneration, Replicas: deployment.Status.Replicas,
			UpdatedReplicas: deployment.Status.UpdatedReplicas, AvailableReplicas: deployment.Status.AvailableReplicas}
		return cmp.Diff(appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: replicas,
			UpdatedReplicas: replicas, AvailableReplicas: replicas}, got)
	})
}

func (c *cluster) podsOf(app string) []corev1.Pod {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

func (c *cluster) onlyPod(app string) corev1.Pod {
	c.t.Helper()
	pods := c.podsOf(app)
	if len(pods) != 1 {
		c.t.Fatalf("%d Pods of %s, want one", len(pods), app)
	}
	return pods[0]
}

// nodesOf counts the Pods that are not on their way out by node, "" for those that have
// none.
func (c *cluster) nodesOf(app string) map[string]int {
	c.t.Helper()
	on := map[string]int{}
	for _, pod := range c.podsOf(app) {
		if pod.DeletionTimestamp == nil {
			on[pod.Spec.NodeName]++
		}
	}
	return on
}

func (c *cluster) readyNodes() map[string]corev1.ConditionStatus {
	c.t.Helper()
	list, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	ready := map[string]corev1.ConditionStatus{}
	for _, node := range list.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				ready[node.Name] = condition.Status
			}
		}
	}
	return ready
}

// untouched fails unless the Pod is the same, in the same container, which has never
// been restarted and answers.
func (c *cluster) untouched(before corev1.Pod) {
	c.t.Helper()
	now := c.onlyPod(before.Labels["app"])
	if now.UID != before.UID || now.DeletionTimestamp != nil || len(now.Status.ContainerStatuses) != 1 {
		c.t.Fatalf("Pod %s was replaced by %s: %+v", before.Name, now.Name, now.Status)
	}
	was, is := before.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
	if is.ContainerID != was.ContainerID || is.RestartCount != 0 || !is.Ready || !strings.HasPrefix(is.ContainerID, "containerd://") {
		c.t.Errorf("container before %+v, after %+v", was, is)
	}
	c.tell(&now, "/slow?ms=0")
}

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDownKeepsTheState ends everything and finds it again.
func TestDownKeepsTheState(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start()
	c.mustKubectl("create", "deployment", "kept", "--image=mend.local/web:1.0", "--replicas=2")
	c.mustKubectl("rollout", "status", "deployment/kept")
	before := c.uids("app=kept")
	if got := c.run("down", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("mend down: %+v", got)
	}
	if n := countProcesses(c.data()); n != 0 {
		t.Errorf("%d processes are left after mend down", n)
	}
	if got := c.run("status", "--data-dir", c.data()); got.code == 0 || !strings.Contains(got.out, "not running") {
		t.Errorf("status of a stopped mend: %+v", got)
	}
	c.start()
	c.eventually("the Pods run again", func() string {
		got := c.mustKubectl("get", "deployment", "kept", "--no-headers")
		return want(regexp.MustCompile(`^kept +2/2 `).MatchString(got), "%s", got)
	})
	if after := c.uids("app=kept"); after != before {
		t.Errorf("Pods before %s, after %s", before, after)
	}
}

// uids lists the UIDs of the Pods with a label, sorted by name.
func (c *cluster) uids(selector string) string {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		c.t.Fatal(err)
	}
	var uids []string
	for _, pod := range list.Items {
		uids = append(uids, string(pod.UID))
	}
	return strings.Join(uids, " ")
}

// TestTwoInstances run beside each other; the purge of one leaves the other alone.
func TestTwoInstances(t *testing.T) {
	needRoot(t)
	t.Parallel()
	one, two := newCluster(t), newCluster(t)
	one.start()
	two.start()
	two.mustKubectl("run", "neighbour", "--image=mend.local/web:1.0")
	pod := two.readyPod("neighbour")
	one.mustKubectl("run", "gone", "--image=mend.local/web:1.0")
	one.readyPod("gone")
	if got := one.run("down", "--purge", "--data-dir", one.data()); got.code != 0 {
		t.Fatalf("mend down --purge: %+v", got)
	}
	two.tell(pod, "/slow?ms=0")
	if again := two.readyPod("neighbour"); again.Status.ContainerStatuses[0].RestartCount != 0 ||
		again.Status.ContainerStatuses[0].ContainerID != pod.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("before %+v, after %+v", pod.Status.ContainerStatuses, again.Status.ContainerStatuses)
	}
}

// TestStatusAndKubeconfig are what a person looks at first.
func TestStatusAndKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start("--simulate", "1")
	var status struct {
		Running    bool
		Components []struct {
			Name    string
			Healthy bool
		}
		Nodes []struct{ Ready bool }
		Paths map[string]string
	}
	got := c.run("status", "--json", "--data-dir", c.data())
	if err := json.Unmarshal([]byte(got.out), &status); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	if !status.Running || len(status.Nodes) != 1 || !status.Nodes[0].Ready || len(status.Components) == 0 {
		t.Errorf("status = %s", got.out)
	}
	for _, component := range status.Components {
		if !component.Healthy {
			t.Errorf("%s is not healthy: %s", component.Name, got.out)
		}
	}
	info, err := os.Lstat(c.kubeconfig())
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("kubeconfig: %v, %v; want 0600", info, err)
	}
	config := filepath.Join(c.dir, ".kube", "config")
	if _, err := os.Stat(config); !os.IsNotExist(err) {
		t.Errorf("~/.kube/config was touched unasked: %v", err)
	}
	if got := c.run("kubeconfig", "--merge", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("merge: %+v", got)
	}
	if got := c.run("kubectl", "--context", "mend", "get", "nodes"); got.code != 0 {
		t.Errorf("kubectl --context mend: %+v", got)
	}
	if got := c.run("up", "--data-dir", c.data()); got.code != 0 || !strings.Contains(got.out, "already running") {
		t.Errorf("second up: %+v", got)
	}
}

// TestSimulatedNodeServesNoContainers but everything above them.
func TestSimulatedDeployment(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start("--simulate", "1")
	c.mustKubectl("create", "deployment", "web", "--image=nginx:1.24", "--replicas=20")
	c.mustKubectl("rollout", "status", "deployment/web", "--timeout=60s")
	c.mustKubectl("set", "image", "deployment/web", "nginx=nginx:1.25")
	c.mustKubectl("rollout", "status", "deployment/web", "--timeout=60s")
	list, err := c.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && (pod.Status.Phase != corev1.PodRunning || pod.Spec.Containers[0].Image != "nginx:1.25") {
			t.Errorf("%s: %s with %s", pod.Name, pod.Status.Phase, pod.Spec.Containers[0].Image)
		}
	}
}

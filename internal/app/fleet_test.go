package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"mend/internal/instance"
)

// startSimulated runs a mend until the test ends.
func startSimulated(t *testing.T, config Config) (kubernetes.Interface, *http.Client) {
	t.Helper()
	config.Kubeconfig, config.LogTo, config.NodeName = filepath.Join(t.TempDir(), "kubeconfig"), io.Discard, "host"
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Run(ctx, config, func(step Step) {
			if step.Done {
				close(ready)
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		made, err := instance.Find(config.DataDir)
		if err == nil { // the run directory is not below the test's own
			err = Purge(context.Background(), made, func(Step) {})
		}
		if err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("no start within a minute")
	}
	found, err := instance.Find(config.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	return client, ControlClient(found.ControlSocket())
}

// ask sends what `mend simulate nodes` does and returns its last word.
func ask(t *testing.T, control *http.Client, nodes int, behaviour string) Step {
	t.Helper()
	response, err := control.Post(fmt.Sprintf("http://mend/simulate?nodes=%d", nodes), "", strings.NewReader(behaviour))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var last Step
	for decoder := json.NewDecoder(response.Body); decoder.More(); {
		last = Step{}
		if err := decoder.Decode(&last); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// readiness by node name.
func nodesOf(t *testing.T, client kubernetes.Interface) map[string]bool {
	t.Helper()
	list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: SimulatedLabel + "=true"})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]bool{}
	for i := range list.Items {
		nodes[list.Items[i].Name], _ = readiness(&list.Items[i])
	}
	return nodes
}

func TestSimulatedNodesComeAndGo(t *testing.T) {
	client, control := startSimulated(t, Config{DataDir: t.TempDir(), Simulate: 1})
	if diff := cmp.Diff(map[string]bool{"host": true}, nodesOf(t, client)); diff != "" {
		t.Fatalf("at the start (-want +got):\n%s", diff)
	}
	if said := ask(t, control, 3, ""); said.Error != "" {
		t.Fatal(said.Error)
	}
	if diff := cmp.Diff(map[string]bool{"host": true, "host-1": true, "host-2": true}, nodesOf(t, client)); diff != "" {
		t.Errorf("after more were asked for (-want +got):\n%s", diff)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.PodSpec{NodeName: "host-2",
		Containers: []v1.Container{{Name: "web", Image: "mend.local/web:1.0"}}}}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if said := ask(t, control, 1, ""); said.Error != "" {
		t.Fatal(said.Error)
	}
	if diff := cmp.Diff(map[string]bool{"host": true}, nodesOf(t, client)); diff != "" {
		t.Errorf("after fewer were asked for (-want +got):\n%s", diff)
	}
	pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 0 {
		t.Errorf("the Pod of a node that was taken out is still there: %s", pods.Items[0].Status.Phase)
	}
}

// A mend simulate nodes that was broken off leaves nodes in the API whose agents have
// ended; here such a node is made.
func TestANodeThatWasNotTakenOutGoesWithTheNextChange(t *testing.T) {
	client, control := startSimulated(t, Config{DataDir: t.TempDir(), Simulate: 1})
	left := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host-7", Labels: map[string]string{SimulatedLabel: "true"}}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), left, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if said := ask(t, control, 1, ""); said.Error != "" {
		t.Fatal(said.Error)
	}
	if diff := cmp.Diff(map[string]bool{"host": true}, nodesOf(t, client)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestNoSimulatedNodesBeforeTheirNamesAreKnown(t *testing.T) {
	f := newFleet(&process{}, nil)
	if err := f.change(t.Context(), 1, "", func(Step) {}); err == nil || !strings.Contains(err.Error(), "still starting") {
		t.Errorf("a change before the start was done: %v", err)
	}
	if names := f.names(); len(names) != 0 {
		t.Errorf("nodes were made: %v", names)
	}
}

func TestABadBehaviourChangesNothing(t *testing.T) {
	client, control := startSimulated(t, Config{DataDir: t.TempDir(), Simulate: 1})
	if said := ask(t, control, 2, "rules: [{start: {delay: fast}}]"); !strings.Contains(said.Error, "rules[0].start.delay") {
		t.Errorf("said %+v", said)
	}
	if said := ask(t, control, MostSimulated+1, ""); said.Error == "" {
		t.Error("more nodes than there are addresses for were taken")
	}
	if diff := cmp.Diff(map[string]bool{"host": true}, nodesOf(t, client)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestSimulatedNodesAreLostAndReturn(t *testing.T) {
	client, control := startSimulated(t, Config{DataDir: t.TempDir(), Simulate: 2})
	var before v1.Node
	node := func() v1.Node {
		t.Helper()
		got, err := client.CoreV1().Nodes().Get(t.Context(), "host-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *got
	}
	before = node()
	// The agent that returns serves its kubelet API at another port.
	if said := ask(t, control, 2, "nodes: [{name: host-1, lost: {after: 1ms, for: 1ms}}]"); said.Error != "" {
		t.Fatal(said.Error)
	}
	watching, err := client.CoreV1().Nodes().Watch(t.Context(), named("host-1"))
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	limit := time.After(time.Minute)
	for node().Status.DaemonEndpoints.KubeletEndpoint.Port == before.Status.DaemonEndpoints.KubeletEndpoint.Port {
		select {
		case <-watching.ResultChan():
		case <-limit:
			t.Fatal("the node has not returned within a minute")
		}
	}
}

func TestAddressesOfSimulatedNodesDoNotOverlap(t *testing.T) {
	var seen []netip.Prefix
	for _, i := range []int{0, 1, wideRanges - 1, wideRanges, wideRanges + 1, wideRanges + 63, wideRanges + 64, MostSimulated - 1} {
		pods := simulatedRange(i)
		if pods != pods.Masked() || !netip.MustParsePrefix("10.128.0.0/9").Contains(pods.Addr()) {
			t.Errorf("node %d has %s", i, pods)
		}
		for _, other := range seen {
			if pods.Overlaps(other) {
				t.Errorf("node %d has %s, which overlaps %s", i, pods, other)
			}
		}
		seen = append(seen, pods)
	}
}

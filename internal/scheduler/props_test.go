package scheduler

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

var (
	cpus   = rapid.SampledFrom([]string{"0", "100m", "500m", "1", "2", "4", "5"})
	memory = rapid.SampledFrom([]string{"0", "100Mi", "1Gi", "4Gi", "9Gi"})
)

func drawNode(t *rapid.T, name string) *v1.Node {
	node := aNode(name,
		allocatable("cpu", cpus.Draw(t, "cpu")), allocatable("memory", memory.Draw(t, "memory")),
		allocatable("pods", fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "pods"))),
		labelled("disk", rapid.SampledFrom([]string{"ssd", "hdd"}).Draw(t, "disk")))
	switch rapid.IntRange(0, 9).Draw(t, "trouble") {
	case 0:
		cordoned(node)
	case 1:
		tainted("gpu", v1.TaintEffectNoSchedule)(node)
	case 2:
		tainted("gpu", v1.TaintEffectPreferNoSchedule)(node)
	case 3:
		allocatable("example.com/a", "2")(node)
	}
	return node
}

func drawPod(t *rapid.T, name string) *v1.Pod {
	pod := aPod(name, ownedBy(rapid.SampledFrom([]string{"rs-1", "rs-2", "rs-3"}).Draw(t, "owner")))
	if rapid.Bool().Draw(t, "asks") {
		requests("cpu", cpus.Draw(t, "cpu"))(pod)
		requests("memory", memory.Draw(t, "memory"))(pod)
	}
	switch rapid.IntRange(0, 9).Draw(t, "wish") {
	case 0:
		hostPorted(rapid.SampledFrom([]string{"", "10.0.0.1", "10.0.0.2"}).Draw(t, "address"), 80)(pod)
	case 1:
		selecting("disk", "ssd")(pod)
	case 2:
		tolerating(v1.Toleration{Operator: v1.TolerationOpExists})(pod)
	case 3:
		preferring(1, "disk", "hdd")(pod)
	case 4:
		requests("example.com/a", "1")(pod)
	case 5:
		requiring(nameTerm("node-1"), labelTerm("disk", "hdd"))(pod)
	}
	if rapid.IntRange(0, 5).Draw(t, "important") == 0 {
		priority := int32(10)
		pod.Spec.Priority = &priority
	}
	return pod
}

func drawWorld(t *rapid.T) world {
	var w world
	for i := range rapid.IntRange(0, 5).Draw(t, "nodes") {
		w.nodes = append(w.nodes, drawNode(t, fmt.Sprintf("node-%d", i)))
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "pods") {
		pod := drawPod(t, fmt.Sprintf("pod-%d", i))
		on(fmt.Sprintf("node-%d", rapid.IntRange(0, 6).Draw(t, "on")))(pod)
		w.pods = append(w.pods, pod)
	}
	return w
}

// objection says, from the objects alone and without the code under test, why
// pod must not run on node beside others; "" when it may.
func objection(pod *v1.Pod, node *v1.Node, others []*v1.Pod) string {
	tolerant := len(pod.Spec.Tolerations) > 0 // the drawn toleration takes everything
	if node.Spec.Unschedulable && !tolerant {
		return "cordoned"
	}
	for _, taint := range node.Spec.Taints {
		if taint.Effect != v1.TaintEffectPreferNoSchedule && !tolerant {
			return "tainted"
		}
	}
	for key, value := range pod.Spec.NodeSelector {
		if node.Labels[key] != value {
			return "not selected"
		}
	}
	if terms := requiredTerms(pod); terms != nil && node.Name != "node-1" && node.Labels["disk"] != "hdd" {
		return "no affinity"
	}
	if int64(len(others))+1 > node.Status.Allocatable.Pods().Value() {
		return "pods"
	}
	return shortage(pod, node, others)
}

func shortage(pod *v1.Pod, node *v1.Node, others []*v1.Pod) string {
	for name, want := range pod.Spec.Containers[0].Resources.Requests {
		sum := want.DeepCopy()
		for _, other := range others {
			sum.Add(other.Spec.Containers[0].Resources.Requests[name])
		}
		if have := node.Status.Allocatable[name]; !want.IsZero() && sum.Cmp(have) > 0 {
			return "short of " + string(name)
		}
	}
	for _, other := range others {
		if portsClash(pod.Spec.Containers[0].Ports, other.Spec.Containers[0].Ports) {
			return "port"
		}
	}
	return ""
}

func portsClash(mine, theirs []v1.ContainerPort) bool {
	for _, a := range mine {
		for _, b := range theirs {
			if a.HostPort == b.HostPort && (a.HostIP == "" || b.HostIP == "" || a.HostIP == b.HostIP) {
				return true
			}
		}
	}
	return false
}

func podsOn(pods []*v1.Pod, node string) []*v1.Pod {
	var here []*v1.Pod
	for _, p := range pods {
		if p.Spec.NodeName == node {
			here = append(here, p)
		}
	}
	return here
}

func TestPlanBindsOnlyWherePodFitsAndExplainsEveryRefusal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, pod := drawWorld(t), drawPod(t, "new")
		plan := MakePlan(w.cluster(), pod)
		switch {
		case plan.Bind != nil:
			for _, node := range w.nodes {
				if node.Name != plan.Bind.Node {
					continue
				}
				if why := objection(pod, node, podsOn(w.pods, node.Name)); why != "" {
					t.Fatalf("bound to %s in spite of: %s", node.Name, why)
				}
				return
			}
			t.Fatalf("bound to %q, which does not exist", plan.Bind.Node)
		case plan.Refuse != nil:
			if len(plan.Refuse.Nodes) != len(w.nodes) {
				t.Fatalf("%d of %d nodes explained", len(plan.Refuse.Nodes), len(w.nodes))
			}
			for i, node := range w.nodes {
				if objection(pod, node, podsOn(w.pods, node.Name)) == "" {
					t.Fatalf("refused, but fits %s: %s", node.Name, plan.Refuse.Message)
				}
				if n := plan.Refuse.Nodes[i]; n.Node != node.Name || len(n.Reasons) == 0 {
					t.Fatalf("%s is not explained: %+v", node.Name, n)
				}
			}
		default:
			t.Fatal("no plan")
		}
	})
}

// The cluster may be told of nodes and Pods in any order, some of them twice, or
// gone and back, and plans are the same.
func TestPlanIsTheSameForAnyOrderOfEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, pod := drawWorld(t), drawPod(t, "new")
		want := MakePlan(w.cluster(), pod)

		other := NewCluster()
		var events []func()
		for _, n := range w.nodes {
			events = append(events, func() { other.SetNode(n) })
		}
		for _, p := range w.pods {
			events = append(events, func() { other.SetPod(p) })
		}
		shuffle := func() {
			rng := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
			rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
			for _, event := range events {
				event()
			}
		}
		shuffle()
		for _, p := range w.pods {
			if rapid.Bool().Draw(t, "pod goes") {
				other.RemovePod(p.UID)
			}
		}
		for _, n := range w.nodes {
			if rapid.Bool().Draw(t, "node goes") {
				other.RemoveNode(n.Name)
			}
		}
		shuffle()
		if diff := cmp.Diff(want, MakePlan(other, pod)); diff != "" {
			t.Fatalf("plan depends on the order (-first +second):\n%s", diff)
		}
	})
}

func TestClusterIsEmptyAgainWhenEverythingIsGone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.cluster()
		for _, n := range w.nodes {
			c.RemoveNode(n.Name)
		}
		for _, p := range w.pods {
			c.RemovePod(p.UID)
		}
		if len(c.byName) != 0 || len(c.ordered) != 0 || len(c.pods) != 0 {
			t.Fatalf("left: %d nodes, %d ordered, %d pods", len(c.byName), len(c.ordered), len(c.pods))
		}
	})
}

// Plans neither change what they read nor remember it.
func TestPlanIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, pod := drawWorld(t), drawPod(t, "new")
		c, before := w.cluster(), pod.DeepCopy()
		version := c.version
		first, second := MakePlan(c, pod), MakePlan(c, pod)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("two plans differ:\n%s", diff)
		}
		if diff := cmp.Diff(before, pod); diff != "" || c.version != version {
			t.Fatalf("the plan changed its input:\n%s", diff)
		}
	})
}

// Many Pods placed one after another are spread evenly over equal nodes.
func TestEqualPodsSpreadEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 8).Draw(t, "nodes")
		pods := rapid.IntRange(1, 60).Draw(t, "pods")
		owned := rapid.Bool().Draw(t, "owned")
		c := world{nodes: nodesNamed(nodes, allocatable("cpu", "64"), allocatable("memory", "256Gi"))}.cluster()
		counts := map[string]int{}
		for i := range pods {
			pod := aPod(fmt.Sprintf("pod-%d", i), requests("cpu", "10m"))
			if owned {
				ownedBy("rs")(pod)
			}
			plan := MakePlan(c, pod)
			if plan.Bind == nil {
				t.Fatalf("refused: %+v", plan.Refuse)
			}
			counts[plan.Bind.Node]++
			on(plan.Bind.Node)(pod)
			c.SetPod(pod)
		}
		least, most := pods, 0
		for _, n := range nodesNamed(nodes) {
			least, most = min(least, counts[n.Name]), max(most, counts[n.Name])
		}
		if most-least > 1 {
			t.Fatalf("uneven: %v", counts)
		}
	})
}

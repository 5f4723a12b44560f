package scheduler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pointer[T any](value T) *T { return &value }

func bindTo(node string) Plan {
	return Plan{Bind: &Bind{Node: node, Why: "Successfully assigned default/new to " + node}}
}

var placements = map[string]struct {
	world world
	pod   *v1.Pod
	want  Plan
}{
	"the only node gets it": {
		world{nodes: nodesNamed(1)}, aPod("new"), bindTo("node-0")},
	"of equal nodes the first by name": {
		world{nodes: nodesNamed(3)}, aPod("new"), bindTo("node-0")},
	"a node with less requested goes first": {
		world{nodes: nodesNamed(2), pods: []*v1.Pod{aPod("a", on("node-0"), requests("cpu", "1"))}},
		aPod("new"), bindTo("node-1")},
	"a Pod without requests still counts as something": {
		world{nodes: nodesNamed(2), pods: []*v1.Pod{aPod("a", on("node-0"))}},
		aPod("new"), bindTo("node-1")},
	"equal in hundredths, so the node with fewer Pods": {
		world{nodes: nodesNamed(2, allocatable("cpu", "400"), allocatable("memory", "4Ti")), pods: []*v1.Pod{
			aPod("a", on("node-0"), requests("cpu", "1m"), requests("memory", "1"))}},
		aPod("new"), bindTo("node-1")},
	"siblings spread, even onto a fuller node": {
		world{nodes: nodesNamed(2), pods: []*v1.Pod{
			aPod("a", on("node-0"), ownedBy("rs"), requests("cpu", "100m")),
			aPod("b", on("node-1"), requests("cpu", "2"))}},
		aPod("new", ownedBy("rs")), bindTo("node-1")},
	"a sibling that is on its way out does not count as one": {
		world{nodes: nodesNamed(2), pods: []*v1.Pod{
			aPod("a", on("node-0"), ownedBy("rs"), requests("cpu", "100m"), func(p *v1.Pod) {
				p.DeletionTimestamp = &metav1.Time{}
			}),
			aPod("b", on("node-1"), requests("cpu", "2"))}},
		aPod("new", ownedBy("rs")), bindTo("node-0")},
	"preferred affinity outweighs a fuller node": {
		world{nodes: []*v1.Node{aNode("node-0"), aNode("node-1", labelled("disk", "ssd"))},
			pods: []*v1.Pod{aPod("a", on("node-1"), requests("cpu", "2"))}},
		aPod("new", preferring(1, "disk", "ssd")), bindTo("node-1")},
	"PreferNoSchedule is avoided": {
		world{nodes: []*v1.Node{aNode("node-0", tainted("slow", v1.TaintEffectPreferNoSchedule)), aNode("node-1")},
			pods: []*v1.Pod{aPod("a", on("node-1"), requests("cpu", "2"))}},
		aPod("new"), bindTo("node-1")},
	"PreferNoSchedule that is tolerated is no reason": {
		world{nodes: []*v1.Node{aNode("node-0", tainted("slow", v1.TaintEffectPreferNoSchedule)), aNode("node-1")}},
		aPod("new", tolerating(v1.Toleration{Operator: v1.TolerationOpExists})), bindTo("node-0")},
	"exactly what is left is enough": {
		world{nodes: nodesNamed(1), pods: []*v1.Pod{aPod("a", on("node-0"), requests("cpu", "3"))}},
		aPod("new", requests("cpu", "1")), bindTo("node-0")},
	"a Pod that has ended takes nothing": {
		world{nodes: nodesNamed(1), pods: []*v1.Pod{aPod("a", on("node-0"), requests("cpu", "4"),
			func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })}},
		aPod("new", requests("cpu", "4")), bindTo("node-0")},
	"what nobody asks for is never short": {
		world{nodes: nodesNamed(1), pods: []*v1.Pod{aPod("a", on("node-0"), requests("cpu", "8"))}},
		aPod("new", requests("memory", "1Gi")), bindTo("node-0")},
	"the same host port on other addresses is free": {
		world{nodes: nodesNamed(1), pods: []*v1.Pod{aPod("a", on("node-0"), hostPorted("10.0.0.1", 80))}},
		aPod("new", hostPorted("10.0.0.2", 80)), bindTo("node-0")},
	"an init container's host port does not count, a sidecar's does": {
		world{nodes: nodesNamed(2), pods: []*v1.Pod{
			aPod("a", on("node-0"), func(p *v1.Pod) {
				p.Spec.InitContainers = []v1.Container{{Name: "init", RestartPolicy: pointer(v1.ContainerRestartPolicyAlways),
					Ports: []v1.ContainerPort{{HostPort: 80, ContainerPort: 80}}}}
			}),
			aPod("b", on("node-1"), requests("cpu", "3"), func(p *v1.Pod) {
				p.Spec.InitContainers = []v1.Container{{Name: "init", Ports: []v1.ContainerPort{{HostPort: 80, ContainerPort: 80}}}}
			})}},
		aPod("new", hostPorted("", 80)), bindTo("node-1")},
	"a tolerated taint is no obstacle": {
		world{nodes: nodesNamed(1, tainted("gpu", v1.TaintEffectNoSchedule))},
		aPod("new", tolerating(v1.Toleration{Key: "gpu", Operator: v1.TolerationOpExists})), bindTo("node-0")},
	"a tolerated cordon is no obstacle": {
		world{nodes: nodesNamed(1, cordoned)},
		aPod("new", tolerating(v1.Toleration{Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists})), bindTo("node-0")},
	"affinity to a node by name": {
		world{nodes: nodesNamed(3)}, aPod("new", requiring(nameTerm("node-2"))), bindTo("node-2")},
	"terms are alternatives": {
		world{nodes: []*v1.Node{aNode("node-0"), aNode("node-1", labelled("disk", "ssd"))}},
		aPod("new", requiring(nameTerm("elsewhere"), labelTerm("disk", "ssd"))), bindTo("node-1")},
	"a Pod on a node that is not known takes nothing from the others": {
		world{nodes: nodesNamed(1), pods: []*v1.Pod{aPod("a", on("gone"), requests("cpu", "4"))}},
		aPod("new", requests("cpu", "4")), bindTo("node-0")},
	"a Pod that is bound is left alone":   {world{nodes: nodesNamed(1)}, aPod("new", on("node-0")), Plan{}},
	"a Pod that is going is left alone":   {world{nodes: nodesNamed(1)}, aPod("new", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), Plan{}},
	"a Pod that has ended is left alone":  {world{nodes: nodesNamed(1)}, aPod("new", func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }), Plan{}},
	"a Pod with gates waits for the last": {world{nodes: nodesNamed(1)}, aPod("new", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "x"}} }), Plan{Gate: &Gate{Why: messageGated}}},
}

func TestPodIsPlacedWhereItFitsBest(t *testing.T) {
	for sentence, tc := range placements {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, MakePlan(tc.world.cluster(), tc.pod)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

const (
	noVictims = "No preemption victims found for incoming pod"
	noHelp    = "Preemption is not helpful for scheduling"
)

var refusals = map[string]struct {
	world world
	pod   *v1.Pod
	want  string
}{
	"no nodes at all": {world{}, aPod("new"), "no nodes available to schedule pods"},
	"only Pods name a node": {
		world{pods: []*v1.Pod{aPod("a", on("gone"))}}, aPod("new"), "no nodes available to schedule pods"},
	"taken by others": {
		world{nodes: nodesNamed(1), pods: []*v1.Pod{aPod("a", on("node-0"), requests("cpu", "4"))}},
		aPod("new", requests("cpu", "1")),
		"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 " + noVictims + "."},
	"larger than the node": {
		world{nodes: nodesNamed(1)}, aPod("new", requests("cpu", "64")),
		"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 " + noHelp + "."},
	"one unit too many": {
		world{nodes: nodesNamed(1)}, aPod("new", requests("cpu", "4001m")),
		"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 " + noHelp + "."},
	"every resource that is short is named, in this order": {
		world{nodes: nodesNamed(1, allocatable("ephemeral-storage", "1Gi"), allocatable("pods", "0"))},
		aPod("new", requests("cpu", "64"), requests("memory", "64Gi"), requests("ephemeral-storage", "2Gi"),
			requests("example.com/b", "1"), requests("example.com/a", "1")),
		"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient ephemeral-storage, 1 Insufficient example.com/a, " +
			"1 Insufficient example.com/b, 1 Insufficient memory, 1 Too many pods. " +
			"preemption: 0/1 nodes are available: 1 " + noHelp + "."},
	"too many Pods": {
		world{nodes: nodesNamed(1, allocatable("pods", "1")), pods: []*v1.Pod{aPod("a", on("node-0"))}}, aPod("new"),
		"0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available: 1 " + noVictims + "."},
	"an init container larger than the containers": {
		world{nodes: nodesNamed(1)}, aPod("new", requests("cpu", "1"), func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{Name: "init", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("5")}}}}
		}),
		"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 " + noHelp + "."},
	"overhead on top": {
		world{nodes: nodesNamed(1)}, aPod("new", requests("cpu", "4"), func(p *v1.Pod) {
			p.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1m")}
		}),
		"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 " + noHelp + "."},
	"a host port is taken": {
		world{nodes: nodesNamed(1), pods: []*v1.Pod{aPod("a", on("node-0"), hostPorted("10.0.0.1", 80))}},
		aPod("new", hostPorted("", 80)),
		"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. " +
			"preemption: 0/1 nodes are available: 1 " + noVictims + "."},
	"each node has its own reason, most counted first as text sorts": {
		world{nodes: []*v1.Node{aNode("a", cordoned), aNode("b", tainted("x", v1.TaintEffectNoExecute)),
			aNode("c", tainted("x", v1.TaintEffectNoSchedule)), aNode("d", labelled("disk", "ssd"), allocatable("cpu", "0"))}},
		aPod("new", requests("cpu", "1"), selecting("disk", "ssd")),
		"0/4 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable, 2 node(s) had untolerated taint(s). " +
			"preemption: 0/4 nodes are available: 4 " + noHelp + "."},
	"labels do not match": {
		world{nodes: nodesNamed(2)}, aPod("new", selecting("disk", "ssd")),
		"0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. " +
			"preemption: 0/2 nodes are available: 2 " + noHelp + "."},
	"affinity to a node that is full": {
		world{nodes: nodesNamed(2), pods: []*v1.Pod{aPod("a", on("node-1"), requests("cpu", "4"))}},
		aPod("new", requests("cpu", "1"), requiring(nameTerm("node-1"))),
		"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. " +
			"preemption: 0/2 nodes are available: 1 " + noVictims + ", 1 " + noHelp + "."},
	"affinity that contradicts itself": {
		world{nodes: nodesNamed(1)}, aPod("new", requiring(nameTerm("node-0", "node-1"))),
		"0/1 nodes are available: pod affinity terms conflict. preemption: 0/1 nodes are available: 1 " + noHelp + "."},
	"a Pod that never preempts": {
		world{nodes: nodesNamed(1)}, aPod("new", requests("cpu", "64"), func(p *v1.Pod) { p.Spec.PreemptionPolicy = pointer(v1.PreemptNever) }),
		"0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."},
}

func TestRefusalSaysWhyInUpstreamsWords(t *testing.T) {
	for sentence, tc := range refusals {
		t.Run(sentence, func(t *testing.T) {
			plan := MakePlan(tc.world.cluster(), tc.pod)
			if plan.Refuse == nil {
				t.Fatalf("not refused: %+v", plan)
			}
			if diff := cmp.Diff(tc.want, plan.Refuse.Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if len(plan.Refuse.Nodes) != len(tc.world.nodes) {
				t.Errorf("%d nodes explained, want %d", len(plan.Refuse.Nodes), len(tc.world.nodes))
			}
		})
	}
}

// 4 cores with 1 requested and 1 to come leave 2: 50. 8 GiB with 2 and 4 leave 2:
// 25. The mean is 37, rounded down as upstream does.
func TestLeastAllocatedIsUpstreamsFormula(t *testing.T) {
	c := world{nodes: nodesNamed(1), pods: []*v1.Pod{
		aPod("a", on("node-0"), requests("cpu", "1"), requests("memory", "2Gi"))}}.cluster()
	d := DemandOf(aPod("new", requests("cpu", "1"), requests("memory", "4Gi")))
	if got := leastAllocated(d, c.byName["node-0"]); got != 37 {
		t.Errorf("score %d, want 37", got)
	}
	// Nothing requested counts as 100m and 200 MiB: (4000-1000-100)/4000 is 72,
	// (8192-2048-200)/8192 is 72.
	if got := leastAllocated(DemandOf(aPod("new")), c.byName["node-0"]); got != 72 {
		t.Errorf("score without requests %d, want 72", got)
	}
}

func TestShapeTellsDemandsApart(t *testing.T) {
	base := DemandOf(aPod("a", requests("cpu", "1"), ownedBy("rs"))).shape()
	if same := DemandOf(aPod("b", requests("cpu", "1000m"), ownedBy("other"))).shape(); same != base {
		t.Errorf("equal demands have shapes\n%s\n%s", base, same)
	}
	for what, pod := range map[string]*v1.Pod{
		"requests":   aPod("b", requests("cpu", "2")),
		"extended":   aPod("b", requests("cpu", "1"), requests("example.com/a", "1")),
		"ports":      aPod("b", requests("cpu", "1"), hostPorted("", 80)),
		"selector":   aPod("b", requests("cpu", "1"), selecting("a", "b")),
		"affinity":   aPod("b", requests("cpu", "1"), requiring(labelTerm("a", "b"))),
		"toleration": aPod("b", requests("cpu", "1"), tolerating(v1.Toleration{Key: "a"})),
	} {
		if DemandOf(pod).shape() == base {
			t.Errorf("%s makes no difference to the shape", what)
		}
	}
}

func TestEventTextIsCutAtTheLimit(t *testing.T) {
	long := shorten(strings.Repeat("x", 2000))
	if len(long) != noteLimit || !strings.HasSuffix(long, "x ...") {
		t.Errorf("got %d bytes ending in %q", len(long), long[len(long)-6:])
	}
	if shorten("short") != "short" {
		t.Error("a short text was changed")
	}
}

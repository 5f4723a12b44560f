package scheduling

import (
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"mend/internal/scheduler"
)

const (
	source   = "default-scheduler"
	noVictim = " preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
	noHelp   = " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
)

func TestPodIsBoundAndPeopleAreTold(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	w.addNode("one")
	w.addPod("p", "1")
	w.boundTo("p", "one")
	w.scheduled("p", v1.ConditionTrue, "", "")
	w.event("p", source, v1.EventTypeNormal, "Scheduled", "Successfully assigned default/p to one")
}

func TestPodThatFitsNowhereSaysWhyAndIsBoundOnceThereIsRoom(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	w.addPod("p", "3")
	w.scheduled("p", v1.ConditionFalse, "Unschedulable", "no nodes available to schedule pods")
	w.event("p", source, v1.EventTypeWarning, "FailedScheduling", "no nodes available to schedule pods")

	w.addNode("one", func(n *v1.Node) { n.Status.Allocatable = amounts("2") })
	w.scheduled("p", v1.ConditionFalse, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu."+noHelp)

	grown := w.node("one")
	grown.Status.Allocatable = amounts("4")
	must(w.client.CoreV1().Nodes().UpdateStatus(w.ctx, grown, metav1.UpdateOptions{}))(w)
	w.boundTo("p", "one")
	w.scheduled("p", v1.ConditionTrue, "", "")

	w.addPod("q", "3")
	w.scheduled("q", v1.ConditionFalse, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu."+noVictim)
	w.event("q", source, v1.EventTypeWarning, "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu."+noVictim)
	w.deletePod("p")
	w.boundTo("q", "one")
}

func amounts(cpu string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("8Gi"),
		v1.ResourcePods: resource.MustParse("110")}
}

func TestPodThatEndsMakesRoom(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	w.addNode("one")
	w.addPod("p", "3")
	w.boundTo("p", "one")
	w.addPod("q", "3")
	w.scheduled("q", v1.ConditionFalse, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu."+noVictim)
	must(w.client.CoreV1().Pods("default").Patch(w.ctx, "p", types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"))(w)
	w.boundTo("q", "one")
}

func TestCordonTaintAndSelectorAreHeededAndLiftedAtOnce(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	w.addNode("one", func(n *v1.Node) { n.Spec.Unschedulable = true })
	w.addPod("p", "1", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	w.scheduled("p", v1.ConditionFalse, "Unschedulable", "0/1 nodes are available: 1 node(s) were unschedulable."+noHelp)
	w.patchNode("one", `{"spec":{"unschedulable":false,"taints":[{"key":"a","effect":"NoSchedule"}]}}`)
	w.scheduled("p", v1.ConditionFalse, "Unschedulable", "0/1 nodes are available: 1 node(s) had untolerated taint(s)."+noHelp)
	w.patchNode("one", `{"spec":{"taints":[]}}`)
	w.scheduled("p", v1.ConditionFalse, "Unschedulable",
		"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."+noHelp)
	w.patchNode("one", `{"metadata":{"labels":{"disk":"ssd"}}}`)
	w.boundTo("p", "one")
}

func (w *world) patchNode(name, patch string) {
	w.Helper()
	must(w.client.CoreV1().Nodes().Patch(w.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(w)
}

func TestGatedPodWaitsForItsGates(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	w.addNode("one")
	w.addPod("p", "1", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/wait"}} })
	w.scheduled("p", v1.ConditionFalse, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
	must(w.client.CoreV1().Pods("default").Patch(w.ctx, "p", types.MergePatchType,
		[]byte(`{"spec":{"schedulingGates":null}}`), metav1.PatchOptions{}))(w)
	w.boundTo("p", "one")
}

func TestOnlyPodsThatAskForThisSchedulerAreBoundButAllAreCounted(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	w.addNode("one")
	w.addPod("other", "1", func(p *v1.Pod) { p.Spec.SchedulerName = "another" })
	w.addPod("pinned", "3", func(p *v1.Pod) { p.Spec.NodeName = "one" })
	w.addPod("p", "2")
	w.scheduled("p", v1.ConditionFalse, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu."+noVictim)
	if got := w.pod("other").Spec.NodeName; got != "" {
		t.Errorf("another scheduler's pod was bound to %s", got)
	}
}

// 300 Pods on 10 nodes with room for 240 of them, eight bindings at once: every
// node ends exactly full, and when half of the Pods leave, the rest come in.
func TestManyPodsAreNeverTooManyOnANode(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	for i := range 10 {
		w.addNode(fmt.Sprint("node-", i), func(n *v1.Node) { n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("24") })
	}
	const pods, room = 300, 240
	for i := range pods {
		w.addPod(fmt.Sprint("pod-", i), "10m")
	}
	w.eventually("all nodes to be full", func() error { return w.counts(room, 24) })
	left := 0
	for _, p := range must(w.client.CoreV1().Pods("default").List(w.ctx, metav1.ListOptions{}))(w).Items {
		if p.Spec.NodeName != "" && left < pods-room {
			w.deletePod(p.Name)
			left++
		}
	}
	w.eventually("the others to come in", func() error { return w.counts(room, 24) })
}

// counts checks that as many Pods are bound in all, and no node has more than
// the limit.
func (w *world) counts(bound, limit int) error {
	list, err := w.client.CoreV1().Pods("default").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	total, perNode := 0, map[string]int{}
	for _, p := range list.Items {
		if p.Spec.NodeName != "" {
			total++
			perNode[p.Spec.NodeName]++
		}
	}
	for node, count := range perNode {
		if count > limit {
			w.Fatalf("%s has %d pods, limit %d", node, count, limit)
		}
	}
	if total != bound {
		return fmt.Errorf("%d pods bound, want %d", total, bound)
	}
	return nil
}

func TestHigherPriorityGoesFirst(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, scheduler.Declaration())
	// All wait before there is a node, so that age cannot decide.
	for i := range 4 {
		w.addPod(fmt.Sprint("plain-", i), "3")
	}
	w.addPod("important", "3", func(p *v1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" })
	for _, name := range []string{"plain-0", "plain-3", "important"} {
		w.scheduled(name, v1.ConditionFalse, "Unschedulable", "no nodes available to schedule pods")
	}
	w.addNode("one")
	w.eventually("a binding", func() error {
		for _, p := range must(w.client.CoreV1().Pods("default").List(w.ctx, metav1.ListOptions{}))(w).Items {
			if p.Spec.NodeName != "" && p.Name != "important" {
				w.Fatalf("%s went first", p.Name)
			}
		}
		if w.pod("important").Spec.NodeName == "" {
			return errors.New("nothing is bound")
		}
		return nil
	})
}

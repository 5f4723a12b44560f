package scheduling

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"mend/internal/controller/nodehealth"
	"mend/internal/controller/tainteviction"
)

// timed is a world whose loops live by a clock that the test moves. Nodes that
// are alive renew their Leases as it moves.
type timed struct {
	*world
	clock *clocktesting.FakeClock
	alive []string
	beat  int
}

func newTimed(t *testing.T) *timed {
	fake := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	return &timed{world: newWorld(t, fake, nodehealth.Declaration(), tainteviction.Declaration()), clock: fake}
}

// until moves the clock in steps that the loops can keep up with, until the
// check passes.
func (w *timed) until(what string, check func() error) {
	w.Helper()
	w.eventually(what, func() error {
		err := check()
		if err != nil {
			w.step()
		}
		return err
	})
}

func (w *timed) step() {
	w.beat++
	for _, name := range w.alive {
		w.renews(name, w.beat)
	}
	w.clock.Step(5 * time.Second)
}

func (w *timed) ready(name string, status v1.ConditionStatus, reason, message string) error {
	for _, c := range w.node(name).Status.Conditions {
		if c.Type == v1.NodeReady && (c.Status != status || c.Reason != reason || c.Message != message) {
			return fmt.Errorf("node %s is Ready=%s %s %q", name, c.Status, c.Reason, c.Message)
		}
	}
	return nil
}

// tainted compares the node's taints, given as key:effect.
func (w *timed) tainted(name string, want ...string) error {
	var got []string
	for _, taint := range w.node(name).Spec.Taints {
		got = append(got, taint.Key+":"+string(taint.Effect))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("node %s has taints %v, want %v", name, got, want)
	}
	return nil
}

// runsOn makes a Pod on the node that its agent says is ready.
func (w *timed) runsOn(pod, node string, changes ...func(*v1.Pod)) {
	w.Helper()
	w.addPod(pod, "100m", append(changes, func(p *v1.Pod) { p.Spec.NodeName = node })...)
	must(w.client.CoreV1().Pods("default").Patch(w.ctx, pod, types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status"))(w)
}

func (w *timed) podReady(pod string, want v1.ConditionStatus) error {
	for _, c := range w.pod(pod).Status.Conditions {
		if c.Type == v1.PodReady && c.Status != want {
			return fmt.Errorf("pod %s is Ready=%s, want %s", pod, c.Status, want)
		}
	}
	return nil
}

func TestSilentNodeIsMarkedItsPodsEvictedInTimeAndAllIsUndoneWhenItReturns(t *testing.T) {
	w := newTimed(t)
	w.alive = []string{"alive"}
	w.addNode("alive")
	w.addNode("dies")
	w.runsOn("patient", "dies") // tolerates for 300 s by default
	w.runsOn("forever", "dies", func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	})
	w.runsOn("elsewhere", "alive")
	w.event("dies", "node-controller", v1.EventTypeNormal, "RegisteredNode", "Node dies event: Registered Node dies in Controller")

	w.until("the node to be unknown", func() error {
		return w.ready("dies", v1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
	})
	w.until("the taints", func() error {
		return w.tainted("dies", "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule")
	})
	w.until("its Pods to be unready", func() error { return w.podReady("forever", v1.ConditionFalse) })
	w.event("dies", "node-controller", v1.EventTypeNormal, "NodeNotReady", "Node dies status is now: NodeNotReady")
	w.event("forever", "node-controller", v1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	if w.pod("patient").DeletionTimestamp != nil {
		t.Error("the Pod went before its time")
	}

	w.until("the Pod's time to be over", func() error {
		if w.pod("patient").DeletionTimestamp == nil {
			return fmt.Errorf("patient stays")
		}
		return nil
	})
	w.event("patient", "taint-eviction-controller", v1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod default/patient")
	if !slices.ContainsFunc(w.pod("patient").Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "DeletionByTaintManager"
	}) {
		t.Errorf("conditions of the evicted Pod: %+v", w.pod("patient").Status.Conditions)
	}
	if w.pod("forever").DeletionTimestamp != nil || w.pod("elsewhere").DeletionTimestamp != nil {
		t.Error("a Pod was evicted that tolerates the taint, or is on another node")
	}
	if err := w.podReady("elsewhere", v1.ConditionTrue); err != nil {
		t.Error(err)
	}

	w.alive = append(w.alive, "dies")
	w.says("dies", v1.ConditionTrue)
	w.until("the taints to be gone", func() error { return w.tainted("dies") })
	for range 20 { // 100 s
		w.step()
	}
	if err := w.ready("dies", v1.ConditionTrue, "KubeletSaysSo", ""); err != nil {
		t.Error(err)
	}
}

func TestEvictionIsCalledOffWhenTheNodeReturnsInTime(t *testing.T) {
	w := newTimed(t)
	w.alive = []string{"alive"}
	w.addNode("alive")
	w.addNode("returns")
	w.runsOn("p", "returns")
	w.until("the taints", func() error {
		return w.tainted("returns", "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule")
	})
	w.alive = append(w.alive, "returns")
	w.says("returns", v1.ConditionTrue)
	w.until("the taints to be gone", func() error { return w.tainted("returns") })
	w.event("p", "taint-eviction-controller", v1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod default/p")
	for range 80 { // 400 s
		w.step()
	}
	if w.pod("p").DeletionTimestamp != nil {
		t.Error("the Pod was evicted")
	}
}

func TestNobodyIsEvictedWhenNoNodeIsReady(t *testing.T) {
	w := newTimed(t)
	for i := range 3 {
		w.addNode(fmt.Sprint("node-", i))
		w.runsOn(fmt.Sprint("pod-", i), fmt.Sprint("node-", i), func(p *v1.Pod) {
			p.Spec.Tolerations = []v1.Toleration{{Key: "node.kubernetes.io/unreachable", Operator: v1.TolerationOpExists,
				Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64(120))}}
		})
	}
	for i := range 3 {
		w.until("all nodes to be unknown, and none evicted", func() error {
			return w.tainted(fmt.Sprint("node-", i), "node.kubernetes.io/unreachable:NoSchedule")
		})
	}
	for range 40 { // 200 s
		w.step()
	}
	for i := range 3 {
		if w.pod(fmt.Sprint("pod-", i)).DeletionTimestamp != nil {
			t.Errorf("pod-%d was evicted", i)
		}
	}
}

func TestUntoleratedTaintEvictsAtOnce(t *testing.T) {
	w := newTimed(t)
	w.alive = []string{"one"}
	w.addNode("one")
	w.runsOn("p", "one")
	w.patchNode("one", `{"spec":{"taints":[{"key":"example.com/out","effect":"NoExecute"}]}}`)
	w.eventually("the eviction", func() error {
		if w.pod("p").DeletionTimestamp == nil {
			return fmt.Errorf("p stays")
		}
		return nil
	})
}

func TestCordonIsATaintToo(t *testing.T) {
	w := newTimed(t)
	w.addNode("one")
	w.patchNode("one", `{"spec":{"unschedulable":true}}`)
	w.eventually("the taint", func() error { return w.tainted("one", "node.kubernetes.io/unschedulable:NoSchedule") })
	w.patchNode("one", `{"spec":{"unschedulable":false}}`)
	w.eventually("the taint to go", func() error { return w.tainted("one") })
}

package nodehealth

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func taints(pairs ...string) []v1.Taint {
	var list []v1.Taint
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, v1.Taint{Key: pairs[i], Effect: v1.TaintEffect(pairs[i+1])})
	}
	return list
}

const (
	notReady    = v1.TaintNodeNotReady
	unreachable = v1.TaintNodeUnreachable
	noSchedule  = string(v1.TaintEffectNoSchedule)
	noExecute   = string(v1.TaintEffectNoExecute)
	whyTaints   = "the node's conditions changed"
)

func stopped(which v1.NodeConditionType) v1.NodeCondition {
	return v1.NodeCondition{Type: which, Status: v1.ConditionUnknown, Reason: "NodeStatusUnknown",
		Message: "Kubelet stopped posting node status."}
}

func never(which v1.NodeConditionType) v1.NodeCondition {
	return v1.NodeCondition{Type: which, Status: v1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
		Message: "Kubelet never posted node status."}
}

func unknown(n *v1.Node) {
	for _, c := range reported {
		saying(c, v1.ConditionUnknown)(n)
	}
}

var (
	lost = SetUnknown{WasReady: true, Why: "Node n status is now: NodeNotReady", Conditions: []v1.NodeCondition{
		stopped(v1.NodeReady), stopped(v1.NodeMemoryPressure), stopped(v1.NodeDiskPressure), stopped(v1.NodePIDPressure)}}
	ready, pod = aPod("a", v1.ConditionTrue), aPod("b", v1.ConditionTrue)
	recheck    = heard.ends()
)

var plans = map[string]struct {
	observed Observed
	want     Plan
}{
	"a healthy node is left alone until its silence would be over": {
		Observed{Node: aNode("n"), Silence: heard, Brake: free}, Plan{Recheck: recheck}},
	"a new node is announced": {
		Observed{Node: aNode("n"), Silence: heard, Brake: free, IsNew: true},
		Plan{Recheck: recheck, Actions: []Action{Register{Why: "Node n event: Registered Node n in Controller"}}}},
	"silence: conditions, then taints, then Pods": {
		Observed{Node: aNode("n"), Silence: silent, Brake: free, Pods: []*v1.Pod{pod, ready, aPod("c", v1.ConditionFalse)}},
		Plan{Actions: []Action{lost,
			SetTaints{Add: taints(unreachable, noExecute, unreachable, noSchedule), Evicts: true, Why: whyTaints},
			MarkPod{Pod: ready, Why: "Node is not ready"}, MarkPod{Pod: pod, Why: "Node is not ready"}}}},
	"silence when nobody else is ready: no eviction": {
		Observed{Node: aNode("n"), Silence: silent, Brake: brake{full: true}},
		Plan{Actions: []Action{lost, SetTaints{Add: taints(unreachable, noSchedule), Why: whyTaints}}}},
	"full disruption takes eviction back": {
		Observed{Node: aNode("n", unknown, tainted(unreachable, v1.TaintEffectNoSchedule), tainted(unreachable, v1.TaintEffectNoExecute)),
			Silence: silent, Brake: brake{full: true}},
		Plan{Actions: []Action{SetTaints{Remove: taints(unreachable, noExecute), Why: whyTaints}}}},
	"the zone's turn is later": {
		Observed{Node: aNode("n", unknown, tainted(unreachable, v1.TaintEffectNoSchedule)), Silence: silent,
			Brake: brake{evictAt: after(time.Second)}},
		Plan{Recheck: after(time.Second)}},
	"no turns at all": {
		Observed{Node: aNode("n", unknown, tainted(unreachable, v1.TaintEffectNoSchedule)), Silence: silent, Brake: brake{}},
		Plan{}},
	"a node that is being evicted goes on being evicted, whoever has the turn": {
		Observed{Node: aNode("n", unknown, tainted(unreachable, v1.TaintEffectNoSchedule), tainted(unreachable, v1.TaintEffectNoExecute)),
			Silence: silent, Brake: brake{}},
		Plan{}},
	"at rest nothing is done, also to its Pods": {
		Observed{Node: aNode("n", unknown, tainted(unreachable, v1.TaintEffectNoSchedule), tainted(unreachable, v1.TaintEffectNoExecute)),
			Silence: silent, Brake: free, Pods: []*v1.Pod{aPod("c", v1.ConditionFalse)}},
		Plan{}},
	"the agent says not ready: its Pods are its own affair": {
		Observed{Node: aNode("n", saying(v1.NodeReady, v1.ConditionFalse)), Silence: heard, Brake: free, Pods: []*v1.Pod{pod}},
		Plan{Recheck: recheck, Actions: []Action{
			SetTaints{Add: taints(notReady, noExecute, notReady, noSchedule), Evicts: true, Why: whyTaints}}}},
	"back, but not ready: taints are swapped without a turn": {
		Observed{Node: aNode("n", saying(v1.NodeReady, v1.ConditionFalse), tainted(unreachable, v1.TaintEffectNoSchedule),
			tainted(unreachable, v1.TaintEffectNoExecute)), Silence: heard, Brake: brake{}},
		Plan{Recheck: recheck, Actions: []Action{SetTaints{Add: taints(notReady, noExecute, notReady, noSchedule),
			Remove: taints(unreachable, noExecute, unreachable, noSchedule), Why: whyTaints}}}},
	"back and ready: every taint of ours goes, others' stay": {
		Observed{Node: aNode("n", tainted("mine", v1.TaintEffectNoExecute), tainted(unreachable, v1.TaintEffectNoSchedule),
			tainted(v1.TaintNodeMemoryPressure, v1.TaintEffectNoExecute), tainted(unreachable, v1.TaintEffectNoExecute)), Silence: heard, Brake: free},
		Plan{Recheck: recheck, Actions: []Action{SetTaints{Remove: taints(unreachable, noExecute, unreachable, noSchedule), Why: whyTaints}}}},
	"heard again, but still Unknown: nothing new is said of it": {
		Observed{Node: aNode("n", unknown, tainted(unreachable, v1.TaintEffectNoSchedule)), Silence: heard, Brake: brake{}},
		Plan{Recheck: recheck}},
	"pressure, no network and a cordon": {
		Observed{Node: aNode("n", cordoned, saying(v1.NodeMemoryPressure, v1.ConditionTrue), saying(v1.NodeDiskPressure, v1.ConditionTrue),
			saying(v1.NodePIDPressure, v1.ConditionTrue), saying(v1.NodeNetworkUnavailable, v1.ConditionTrue)), Silence: heard, Brake: free},
		Plan{Recheck: recheck, Actions: []Action{SetTaints{Why: whyTaints, Add: taints(
			v1.TaintNodeDiskPressure, noSchedule, v1.TaintNodeMemoryPressure, noSchedule, v1.TaintNodeNetworkUnavailable, noSchedule,
			v1.TaintNodePIDPressure, noSchedule, v1.TaintNodeUnschedulable, noSchedule)}}}},
	"uncordoned": {
		Observed{Node: aNode("n", tainted(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule)), Silence: heard, Brake: free},
		Plan{Recheck: recheck, Actions: []Action{SetTaints{Remove: taints(v1.TaintNodeUnschedulable, noSchedule), Why: whyTaints}}}},
	"a node that never said a word": {
		Observed{Node: aNode("n", mute), Silence: silent, Brake: brake{full: true}},
		Plan{Actions: []Action{
			SetUnknown{Why: lost.Why, Conditions: []v1.NodeCondition{
				never(v1.NodeReady), never(v1.NodeMemoryPressure), never(v1.NodeDiskPressure), never(v1.NodePIDPressure)}},
			SetTaints{Add: taints(unreachable, noSchedule), Why: whyTaints}}}},
	"a node that has not said a word yet": {
		Observed{Node: aNode("n", mute), Silence: heard, Brake: free}, Plan{Recheck: recheck}},
}

func TestPlanForOneNode(t *testing.T) {
	for sentence, tc := range plans {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, MakePlan(tc.observed, start)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

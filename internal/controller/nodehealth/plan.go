package nodehealth

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Observed is all that a plan for one node reads.
type Observed struct {
	Node    *v1.Node
	Silence silence
	Brake   brake
	Pods    []*v1.Pod // on the node
	// IsNew: the node was not known to this process.
	IsNew bool
}

// brake is how far eviction may go.
type brake struct {
	// full: no node may carry a NoExecute taint of ours.
	full bool
	// evictAt is when the next node of the zone may be tainted for eviction;
	// zero means none may.
	evictAt time.Time
}

// Plan is what to do about one node. A crash after any of its actions loses
// nothing: the rest is planned again from what is there.
type Plan struct {
	Actions []Action
	Recheck time.Time
}

// Action is one of [Register], [SetUnknown], [SetTaints] and [MarkPod].
type Action interface{ isAction() }

// Register tells people that the node is watched from now on.
type Register struct{ Why string }

// SetUnknown writes the conditions, each with status Unknown.
type SetUnknown struct {
	Conditions []v1.NodeCondition // without times
	WasReady   bool
	Why        string
}

// SetTaints makes the node's taints Add more and Remove fewer; taints are told
// apart by key and effect.
type SetTaints struct {
	Add, Remove []v1.Taint // without times, sorted
	// Evicts: it takes the zone's turn.
	Evicts bool
	Why    string
}

// MarkPod sets the Pod's Ready condition to False.
type MarkPod struct {
	Pod *v1.Pod
	Why string
}

func (Register) isAction()   {}
func (SetUnknown) isAction() {}
func (SetTaints) isAction()  {}
func (MarkPod) isAction()    {}

type taintRule struct {
	condition v1.NodeConditionType
	status    v1.ConditionStatus
	key       string
}

// taintsFor lists what keeps a node from getting Pods, by condition and status.
var taintsFor = []taintRule{
	{v1.NodeReady, v1.ConditionFalse, v1.TaintNodeNotReady},
	{v1.NodeReady, v1.ConditionUnknown, v1.TaintNodeUnreachable},
	{v1.NodeMemoryPressure, v1.ConditionTrue, v1.TaintNodeMemoryPressure},
	{v1.NodeDiskPressure, v1.ConditionTrue, v1.TaintNodeDiskPressure},
	{v1.NodePIDPressure, v1.ConditionTrue, v1.TaintNodePIDPressure},
	{v1.NodeNetworkUnavailable, v1.ConditionTrue, v1.TaintNodeNetworkUnavailable},
}

// The reasons of the conditions that only this loop writes.
const (
	reasonNever   = "NodeStatusNeverUpdated"
	reasonStopped = "NodeStatusUnknown"
)

// reported are the conditions that an agent posts and a silent one leaves open.
var reported = []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure}

// MakePlan decides what to do about one node at the time now.
func MakePlan(o Observed, now time.Time) Plan {
	var p Plan
	if o.IsNew {
		p.Actions = append(p.Actions, Register{Why: fmt.Sprintf("Node %s event: Registered Node %s in Controller", o.Node.Name, o.Node.Name)})
	}
	conditions := o.Node.Status.Conditions
	isSilent := o.Silence.isOver(now)
	if isSilent {
		if lost, ok := planUnknown(o.Node); ok {
			p.Actions = append(p.Actions, lost)
			conditions = merged(conditions, lost.Conditions)
		}
	} else {
		p.Recheck = o.Silence.ends()
	}
	taints, recheck := planTaints(o, conditions, now)
	if taints != nil {
		p.Actions = append(p.Actions, *taints)
	}
	if !recheck.IsZero() && (p.Recheck.IsZero() || recheck.Before(p.Recheck)) {
		p.Recheck = recheck
	}
	if isSilent {
		p.Actions = append(p.Actions, planPods(o.Pods)...)
	}
	return p
}

// planUnknown leaves a condition that is Unknown already as it is, with whatever
// reason it has.
func planUnknown(node *v1.Node) (SetUnknown, bool) {
	lost := SetUnknown{Why: fmt.Sprintf("Node %s status is now: NodeNotReady", node.Name)}
	for _, which := range reported {
		old := conditionOf(node, which)
		switch {
		case old == nil:
			lost.Conditions = append(lost.Conditions, v1.NodeCondition{Type: which, Status: v1.ConditionUnknown,
				Reason: reasonNever, Message: "Kubelet never posted node status."})
		case old.Status != v1.ConditionUnknown:
			lost.Conditions = append(lost.Conditions, v1.NodeCondition{Type: which, Status: v1.ConditionUnknown,
				Reason: reasonStopped, Message: "Kubelet stopped posting node status."})
		}
		if which == v1.NodeReady && old != nil && old.Status == v1.ConditionTrue {
			lost.WasReady = true
		}
	}
	return lost, len(lost.Conditions) > 0
}

// merged is the conditions as they will be.
func merged(conditions, changed []v1.NodeCondition) []v1.NodeCondition {
	result := slices.Clone(conditions)
	for _, c := range changed {
		at := slices.IndexFunc(result, func(old v1.NodeCondition) bool { return old.Type == c.Type })
		if at < 0 {
			result = append(result, c)
		} else {
			result[at].Status = c.Status
		}
	}
	return result
}

// planTaints compares the taints that are ours to keep with those that are there.
func planTaints(o Observed, conditions []v1.NodeCondition, now time.Time) (*SetTaints, time.Time) {
	wanted := noScheduleTaints(o.Node, conditions)
	evicting, recheck, takesTurn := planEviction(o, conditions, now)
	wanted = append(wanted, evicting...)
	set := &SetTaints{Evicts: takesTurn}
	for _, taint := range wanted {
		if !hasTaint(o.Node.Spec.Taints, taint) {
			set.Add = append(set.Add, taint)
		}
	}
	for _, taint := range o.Node.Spec.Taints {
		if isOurs(taint) && !hasTaint(wanted, taint) {
			set.Remove = append(set.Remove, v1.Taint{Key: taint.Key, Effect: taint.Effect})
		}
	}
	if len(set.Add) == 0 && len(set.Remove) == 0 {
		return nil, recheck
	}
	sortTaints(set.Add)
	sortTaints(set.Remove)
	set.Why = "the node's conditions changed"
	return set, recheck
}

func noScheduleTaints(node *v1.Node, conditions []v1.NodeCondition) []v1.Taint {
	var taints []v1.Taint
	for _, rule := range taintsFor {
		for _, c := range conditions {
			if c.Type == rule.condition && c.Status == rule.status {
				taints = append(taints, v1.Taint{Key: rule.key, Effect: v1.TaintEffectNoSchedule})
			}
		}
	}
	if node.Spec.Unschedulable {
		taints = append(taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	return taints
}

// planEviction returns the NoExecute taint that the node is to carry, if any. A
// node that carries one of the two keeps being evicted under the key that is
// right now; one that carries none waits for its zone's turn.
func planEviction(o Observed, conditions []v1.NodeCondition, now time.Time) (taints []v1.Taint, recheck time.Time, takesTurn bool) {
	right := v1.Taint{Effect: v1.TaintEffectNoExecute}
	for _, c := range conditions {
		switch {
		case c.Type == v1.NodeReady && c.Status == v1.ConditionFalse:
			right.Key = v1.TaintNodeNotReady
		case c.Type == v1.NodeReady && c.Status == v1.ConditionUnknown:
			right.Key = v1.TaintNodeUnreachable
		}
	}
	isEvicted := slices.ContainsFunc(o.Node.Spec.Taints, func(t v1.Taint) bool {
		return t.Effect == v1.TaintEffectNoExecute && isOurs(t)
	})
	switch {
	case right.Key == "" || o.Brake.full:
		return nil, time.Time{}, false
	case isEvicted:
		return []v1.Taint{right}, time.Time{}, false
	case o.Brake.evictAt.IsZero():
		return nil, time.Time{}, false
	case o.Brake.evictAt.After(now):
		return nil, o.Brake.evictAt, false
	default:
		return []v1.Taint{right}, time.Time{}, true
	}
}

func planPods(pods []*v1.Pod) []Action {
	var actions []Action
	for _, pod := range pods {
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodReady && c.Status != v1.ConditionFalse {
				actions = append(actions, MarkPod{Pod: pod, Why: "Node is not ready"})
			}
		}
	}
	slices.SortFunc(actions, func(a, b Action) int {
		return comparePods(a.(MarkPod).Pod, b.(MarkPod).Pod)
	})
	return actions
}

// isOurs says whether taint is kept by this loop alone. A user's NoExecute taint
// with the key of a pressure is not.
func isOurs(taint v1.Taint) bool {
	switch taint.Effect {
	case v1.TaintEffectNoSchedule:
		return taint.Key == v1.TaintNodeUnschedulable ||
			slices.ContainsFunc(taintsFor, func(rule taintRule) bool { return rule.key == taint.Key })
	case v1.TaintEffectNoExecute:
		return taint.Key == v1.TaintNodeNotReady || taint.Key == v1.TaintNodeUnreachable
	default:
		return false
	}
}

func sortTaints(taints []v1.Taint) {
	slices.SortFunc(taints, func(a, b v1.Taint) int {
		return cmp.Or(cmp.Compare(a.Effect, b.Effect), cmp.Compare(a.Key, b.Key))
	})
}

func comparePods(a, b *v1.Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func hasTaint(taints []v1.Taint, wanted v1.Taint) bool {
	return slices.ContainsFunc(taints, func(t v1.Taint) bool { return t.MatchTaint(&wanted) })
}

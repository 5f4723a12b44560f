package scheduler

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// messageGated is the API server's text for a Pod with scheduling gates.
const messageGated = "Scheduling is blocked due to non-empty scheduling gates"

// Plan is what to do about one Pod: exactly one of its fields is set, or none
// for a Pod that has nothing to be done.
type Plan struct {
	Bind   *Bind
	Refuse *Refusal
	Gate   *Gate
}

// Bind assigns the Pod to Node.
type Bind struct {
	Node string
	Why  string
}

// Gate reports that the Pod waits for its gates.
type Gate struct{ Why string }

// MakePlan decides where pod goes: to the best node that fits, or nowhere, with
// a reason from every node. It is pure: the same cluster and Pod give the same
// plan, whatever the order in which the cluster was put together.
func MakePlan(c *Cluster, pod *v1.Pod) Plan {
	switch {
	case needsNode(pod):
		return planFor(c, DemandOf(pod))
	case pod.Spec.NodeName == "" && !isOver(pod):
		return Plan{Gate: &Gate{Why: messageGated}}
	default:
		return Plan{}
	}
}

// needsNode says whether pod is to be placed now.
func needsNode(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && !isOver(pod) && len(pod.Spec.SchedulingGates) == 0
}

// isOver says whether pod will never run any more.
func isOver(pod *v1.Pod) bool { return pod.DeletionTimestamp != nil || isTerminal(pod) }

// isOurs says whether pod asks for this scheduler.
func isOurs(pod *v1.Pod) bool { return pod.Spec.SchedulerName == name }

func planFor(c *Cluster, d *Demand) Plan {
	fitting := make([]*nodeState, 0, len(c.ordered))
	for _, n := range c.ordered {
		if judge(d, n).fits() {
			fitting = append(fitting, n)
		}
	}
	if len(fitting) == 0 {
		return Plan{Refuse: refuse(c, d)}
	}
	node := choose(d, fitting).name
	return Plan{Bind: &Bind{
		Node: node,
		Why:  assigned(d.pod, node),
	}}
}

func assigned(pod *v1.Pod, node string) string {
	return fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
}

// refuse asks every node again for its reason, which keeps the common case, in
// which reasons are thrown away, free of them.
func refuse(c *Cluster, d *Demand) *Refusal {
	r := &Refusal{Nodes: make([]NodeRefusal, 0, len(c.ordered))}
	for _, n := range c.ordered {
		v := judge(d, n)
		r.Nodes = append(r.Nodes, NodeRefusal{Node: n.name, Reasons: v.reasons, Unresolvable: v.unresolvable})
	}
	r.Message = r.message(d)
	return r
}

// canRunOn says whether node exists and d fits it now.
func (c *Cluster) canRunOn(node string, d *Demand) bool {
	n := c.byName[node]
	return n != nil && n.node != nil && judge(d, n).fits()
}

package scheduler

import (
	"fmt"
	"slices"
	"strings"
)

// messageNoNodes is upstream's text for a cluster without nodes.
const messageNoNodes = "no nodes available to schedule pods"

// Refusal says why a Pod fits nowhere.
type Refusal struct {
	// Nodes has one entry for every node, sorted by name.
	Nodes []NodeRefusal
	// Message is the whole in one line, in upstream's words.
	Message string
}

// NodeRefusal says why a Pod does not fit one node.
type NodeRefusal struct {
	Node    string
	Reasons []string // never empty
	// Unresolvable: the Pod would not fit if every other Pod left.
	Unresolvable bool
}

// message gives what upstream's scheduler prints, the part about preemption
// included: clients read it, and it tells whether the Pod would fit a node
// without the Pods on it. mend never preempts, so it never finds victims.
func (r *Refusal) message(d *Demand) string {
	if len(r.Nodes) == 0 {
		return messageNoNodes
	}
	why := contradiction(d)
	if why == "" {
		why = histogram(r.Nodes, func(n NodeRefusal) []string { return n.Reasons })
	}
	head := fmt.Sprintf("0/%d nodes are available:", len(r.Nodes))
	if d.neverPreempt {
		return fmt.Sprintf("%s %s. preemption: not eligible due to preemptionPolicy=Never.", head, why)
	}
	preemption := histogram(r.Nodes, func(n NodeRefusal) []string {
		if n.Unresolvable {
			return []string{"Preemption is not helpful for scheduling"}
		}
		return []string{"No preemption victims found for incoming pod"}
	})
	return fmt.Sprintf("%s %s. preemption: %s %s.", head, why, head, preemption)
}

// contradiction is set when the required affinity names nodes and its terms
// leave none: then no node is asked.
func contradiction(d *Demand) string {
	if d.only != nil && d.only.Len() == 0 {
		return reasonContradiction
	}
	return ""
}

// histogram counts equal reasons and lists them sorted as text, so "10 x" comes
// before "2 y", as upstream.
func histogram(nodes []NodeRefusal, reasons func(NodeRefusal) []string) string {
	counts := map[string]int{}
	for _, n := range nodes {
		for _, reason := range reasons(n) {
			counts[reason]++
		}
	}
	lines := make([]string, 0, len(counts))
	for reason, count := range counts {
		lines = append(lines, fmt.Sprintf("%d %s", count, reason))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

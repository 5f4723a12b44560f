package scheduler

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// Upstream's words: people and tools search for them.
const (
	reasonNodeName      = "node(s) didn't match the requested node name"
	reasonUnschedulable = "node(s) were unschedulable"
	reasonTaint         = "node(s) had untolerated taint(s)"
	reasonAffinity      = "node(s) didn't match Pod's node affinity/selector"
	reasonPorts         = "node(s) didn't have free ports for the requested pod ports"
	reasonPods          = "Too many pods"
	reasonOnly          = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
	reasonContradiction = "pod affinity terms conflict"
)

// verdict is what one rule says of one node. No reasons: the Pod may run there.
type verdict struct {
	reasons []string
	// unresolvable: not even an empty node would do.
	unresolvable bool
}

func (v verdict) fits() bool { return len(v.reasons) == 0 }

// Refusals that are always the same cost nothing to return.
var (
	refuseNodeName      = verdict{[]string{reasonNodeName}, true}
	refuseUnschedulable = verdict{[]string{reasonUnschedulable}, true}
	refuseTaint         = verdict{[]string{reasonTaint}, true}
	refuseAffinity      = verdict{[]string{reasonAffinity}, true}
	refuseOnly          = verdict{[]string{reasonOnly}, true}
	refusePorts         = verdict{[]string{reasonPorts}, false}
)

// rules are asked in upstream's order; the first to refuse a node speaks for it.
var rules = []struct {
	says  string
	check func(d *Demand, n *nodeState) verdict
}{
	{"the required affinity picks nodes by name, and not this one", checkOnly},
	{"the Pod names another node", checkNodeName},
	{"the node is cordoned and the Pod does not tolerate that", checkUnschedulable},
	{"the node has a taint that the Pod does not tolerate", checkTaints},
	{"the node's labels do not match nodeSelector or required affinity", checkAffinity},
	{"a host port is taken", checkPorts},
	{"what is left of the node's resources is too little", checkResources},
}

// judge says whether a Pod with this demand may run on n, and if not, why not.
func judge(d *Demand, n *nodeState) verdict {
	for i := range rules {
		if v := rules[i].check(d, n); !v.fits() {
			return v
		}
	}
	return verdict{}
}

func checkOnly(d *Demand, n *nodeState) verdict {
	if d.only == nil || d.only.Has(n.name) {
		return verdict{}
	}
	return refuseOnly
}

func checkNodeName(d *Demand, n *nodeState) verdict {
	if d.nodeName == "" || d.nodeName == n.name {
		return verdict{}
	}
	return refuseNodeName
}

var cordonTaint = v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}

func checkUnschedulable(d *Demand, n *nodeState) verdict {
	if !n.node.Spec.Unschedulable || tolerates(d.tolerations, &cordonTaint) {
		return verdict{}
	}
	return refuseUnschedulable
}

func checkTaints(d *Demand, n *nodeState) verdict {
	for i := range n.node.Spec.Taints {
		taint := &n.node.Spec.Taints[i]
		if taint.Effect != v1.TaintEffectNoSchedule && taint.Effect != v1.TaintEffectNoExecute {
			continue
		}
		if !tolerates(d.tolerations, taint) {
			return refuseTaint
		}
	}
	return verdict{}
}

// tolerates leaves the comparison operators out, which are alpha and off in the
// API that mend serves; the logger is only used by those.
func tolerates(tolerations []v1.Toleration, taint *v1.Taint) bool {
	return corev1.TolerationsTolerateTaint(klog.Logger{}, tolerations, taint, false)
}

func checkAffinity(d *Demand, n *nodeState) verdict {
	if d.required == nil {
		return verdict{}
	}
	// A term that cannot be parsed matches nothing, as upstream.
	if match, _ := d.required.Match(n.node); match {
		return verdict{}
	}
	return refuseAffinity
}

func checkPorts(d *Demand, n *nodeState) verdict {
	if len(d.ports) == 0 || len(n.ports) == 0 {
		return verdict{}
	}
	for taken := range n.ports {
		for _, wanted := range d.ports {
			if wanted.conflictsWith(taken) {
				return refusePorts
			}
		}
	}
	return verdict{}
}

func checkResources(d *Demand, n *nodeState) verdict {
	var v verdict
	if n.pods+1 > n.allowedPods {
		v.reasons = append(v.reasons, reasonPods)
	}
	want, have, used := &d.requests, &n.allocatable, &n.requested
	v.need("cpu", want.MilliCPU, used.MilliCPU, have.MilliCPU)
	v.need("memory", want.Memory, used.Memory, have.Memory)
	v.need("ephemeral-storage", want.EphemeralStorage, used.EphemeralStorage, have.EphemeralStorage)
	if len(want.Scalar) == 0 {
		return v
	}
	before := len(v.reasons)
	for name, amount := range want.Scalar {
		v.need(string(name), amount, used.Scalar[name], have.Scalar[name])
	}
	slices.Sort(v.reasons[before:])
	return v
}

// need adds a reason when amount more than used does not fit into have. What is
// not asked for is never short, even on a node that is over-committed.
func (v *verdict) need(resource string, amount, used, have int64) {
	if amount <= 0 || amount <= have-used {
		return
	}
	v.reasons = append(v.reasons, "Insufficient "+resource)
	v.unresolvable = v.unresolvable || amount > have
}

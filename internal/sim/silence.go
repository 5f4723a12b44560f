package sim

import (
	"slices"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Upstream's numbers, which the loops promise.
const (
	renewEvery  = 10 * time.Second // an agent renews its Lease
	gracePeriod = 50 * time.Second // a node may be silent
	evictEvery  = 10 * time.Second // between two nodes tainted for eviction
	stayFor     = 300              // seconds that a Pod stays on a node that is not reachable
)

// silences is what is true of the nodes' agents, in seeds where those go silent.
type silences struct {
	silent map[string]bool
	heard  map[string]time.Duration // when a node last spoke
	// tainted is when each Pod was first on a node with a NoExecute taint: no loop
	// can have seen it there earlier.
	tainted map[types.UID]time.Duration
	turn    time.Duration // when this process last tainted a node for eviction
	turned  bool
}

func newSilences() *silences {
	return &silences{silent: map[string]bool{}, heard: map[string]time.Duration{}, tainted: map[types.UID]time.Duration{}}
}

// register is what an agent writes when it starts: a node that is Ready, a Lease.
func (w *world) register(name string) {
	if !w.profile.silence {
		return
	}
	w.speak(name)
	if w.api.objects[leases][leaseKey(name)] == nil {
		_, err := w.api.create(leases, &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: name}})
		must(err)
	}
	w.renew(name)
}

func leaseKey(node string) string { return v1.NamespaceNodeLease + "/" + node }

// speak has an agent report that its node is Ready, and take back what was said of
// it while it was silent.
func (w *world) speak(name string) {
	node, ok := w.api.objects[nodes][name].(*v1.Node)
	if !ok {
		return
	}
	now := metav1.NewTime(w.clock.Now())
	change(w.api, nodes, node, true, func(n *v1.Node) {
		n.Status.Conditions = nil
		for _, c := range []v1.NodeCondition{
			{Type: v1.NodeReady, Status: v1.ConditionTrue},
			{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse},
			{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse},
			{Type: v1.NodePIDPressure, Status: v1.ConditionFalse},
		} {
			c.LastHeartbeatTime, c.LastTransitionTime = now, now
			n.Status.Conditions = append(n.Status.Conditions, c)
		}
	})
	w.silences.heard[name] = w.clock.passed
}

func (w *world) renew(name string) {
	lease, ok := w.api.objects[leases][leaseKey(name)].(*coordination.Lease)
	if !ok {
		return
	}
	w.silences.heard[name] = w.clock.passed
	now := metav1.NewMicroTime(w.clock.Now())
	if lease.Spec.RenewTime != nil && lease.Spec.RenewTime.Equal(&now) {
		return
	}
	next := clone(lease)
	next.Spec.RenewTime = &now
	w.api.put(leases, next) // not by way of an update, whose comparison was a fifth of all runs
}

// agentsRenew is what agents do as time goes by: they renew their Leases, and
// report what they find said of their node.
func (w *world) agentsRenew() {
	if !w.profile.silence {
		return
	}
	for _, node := range listOf[*v1.Node](w.api, nodes) {
		if w.silences.silent[node.Name] {
			continue
		}
		if w.clock.passed-w.silences.heard[node.Name] >= renewEvery {
			w.renew(node.Name)
		}
		if !isReady(node) {
			w.speak(node.Name)
			w.note("agent: node %s reports that it is Ready", node.Name)
		}
	}
}

func isReady(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// goSilent cuts a node's agent off, or lets one be heard again.
func (w *world) goSilent() bool {
	node, ok := pick(w, aNode, undeleted[*v1.Node])
	if !ok {
		return false
	}
	if w.silences.silent[node.Name] {
		w.comeBack(node.Name)
		return true
	}
	w.silences.silent[node.Name] = true
	w.note("node %s goes silent", node.Name)
	return true
}

func (w *world) comeBack(name string) {
	delete(w.silences.silent, name)
	w.speak(name)
	w.renew(name)
	w.note("node %s is heard again", name)
}

// endure lets time pass in which some nodes stay silent and no fault happens: they
// must be found out. The last word of a node may be heard as late as when its
// silence is confirmed, and then counts from there: two grace periods, and some.
// Then all are heard again.
func (w *world) endure() {
	if !w.profile.silence {
		return
	}
	for end := w.clock.passed + 5*gracePeriod/2; w.clock.passed < end && w.broken == ""; w.pass(time.Second) {
		w.workAll()
	}
	for _, node := range listOf[*v1.Node](w.api, nodes) {
		switch silent := w.silences.silent[node.Name]; {
		case silent && isReady(node):
			w.breach("node %s has been silent for %s and counts as Ready", node.Name, w.clock.passed-w.silences.heard[node.Name])
		case silent && !hasTaint(node, v1.TaintNodeUnreachable, v1.TaintEffectNoSchedule):
			w.breach("node %s is silent and takes Pods", node.Name)
		}
	}
	for _, name := range sortedKeys(w.silences.silent) {
		w.comeBack(name)
	}
}

func hasTaint(node *v1.Node, key string, effect v1.TaintEffect) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == key && t.Effect == effect })
}

func isEvicted(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute })
}

// takesPods says whether a Pod with the default tolerations may be placed there.
func takesPods(node *v1.Node) bool { return len(node.Spec.Taints) == 0 && !node.Spec.Unschedulable }

// judgeSilence checks what nodehealth is about to say of a node, and what
// tainteviction is about to delete.
func (w *world) judgeSilence(s *syncing, r request, target object) {
	switch o := target.(type) {
	case *v1.Node:
		quiet := w.clock.passed - w.silences.heard[o.Name]
		if s.loop == "nodehealth" && r.verb == "patchStatus" && quiet < gracePeriod {
			w.mayBreach = "calls node " + o.Name + " silent, which spoke " + quiet.String() + " ago"
		}
	case *v1.Pod:
		if s.loop != "tainteviction" || r.verb != "delete" {
			return
		}
		since, was := w.silences.tainted[o.UID]
		if !was || w.clock.passed-since < stayFor*time.Second {
			w.mayBreach = "evicts Pod " + o.Name + ", which may stay longer"
		}
	}
}

// silenceChanged follows the taints of nodes, and the Pods on them.
func (w *world) silenceChanged(res resource, before, after object) {
	if !w.profile.silence || after == nil {
		return
	}
	switch o := after.(type) {
	case *v1.Node:
		if isEvicted(o) {
			for _, pod := range listOf[*v1.Pod](w.api, pods) {
				w.underTaint(pod, o.Name)
			}
		}
		was, had := before.(*v1.Node)
		if w.caller != nil && w.caller.loop == "nodehealth" && isEvicted(o) && !(had && isEvicted(was)) {
			w.judgeTurn(o)
		}
	case *v1.Pod:
		if node, ok := w.api.objects[nodes][o.Spec.NodeName].(*v1.Node); ok && isEvicted(node) {
			w.underTaint(o, node.Name)
		}
	}
}

func (w *world) underTaint(pod *v1.Pod, node string) {
	if _, known := w.silences.tainted[pod.UID]; !known && pod.Spec.NodeName == node {
		w.silences.tainted[pod.UID] = w.clock.passed
	}
}

// judgeTurn checks the brake: nodes are tainted for eviction one at a time.
func (w *world) judgeTurn(node *v1.Node) {
	since := w.clock.passed - w.silences.turn
	if w.silences.turned && since < evictEvery {
		w.breach("node %s is tainted for eviction %s after another", node.Name, since)
	}
	w.silences.turn, w.silences.turned = w.clock.passed, true
}

// checkNodes expects that all nodes are Ready and take Pods.
func (w *world) checkNodes() {
	if !w.profile.silence {
		return
	}
	for _, node := range listOf[*v1.Node](w.api, nodes) {
		if !isReady(node) || !takesPods(node) {
			w.breach("node %s was heard and is not in use: taints %v", node.Name, node.Spec.Taints)
		}
	}
}

// defaultTolerations are what admission gives to every Pod.
func defaultTolerations() []v1.Toleration {
	var all []v1.Toleration
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		all = append(all, v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
			TolerationSeconds: ptr.To[int64](stayFor)})
	}
	return all
}

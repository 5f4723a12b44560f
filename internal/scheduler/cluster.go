package scheduler

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cluster is the snapshot that plans are made from: every node, and what the
// Pods on it take. It is kept up to date one object at a time, so that a plan
// never scans Pods. It is not safe for concurrent use, and never changes the
// objects it is given.
type Cluster struct {
	// ordered holds the nodes that exist, sorted by name.
	ordered []*nodeState
	byName  map[string]*nodeState
	pods    map[types.UID]placement
	// version grows with every change; equal versions mean equal plans.
	version uint64
}

// nodeState is one node and the sum of the Pods on it.
type nodeState struct {
	name string
	// node is nil while only Pods name it: they may be seen before it, and stay
	// after it.
	node        *v1.Node
	allocatable Resources
	allowedPods int64

	requested             Resources
	scoreCPU, scoreMemory int64
	pods                  int64
	ports                 map[hostPort]int
	siblings              map[types.UID]int64 // by controller
}

// placement is one Pod's part in its node's sum.
type placement struct {
	node string
	amounts
	ports      []hostPort
	controller types.UID // empty when it does not count for spreading
}

// NewCluster returns a cluster without nodes and Pods.
func NewCluster() *Cluster {
	return &Cluster{byName: map[string]*nodeState{}, pods: map[types.UID]placement{}}
}

// Len is the number of nodes that exist.
func (c *Cluster) Len() int { return len(c.ordered) }

// SetNode adds or replaces a node.
func (c *Cluster) SetNode(node *v1.Node) {
	c.version++
	n := c.state(node.Name)
	if n.node == nil {
		at, _ := c.position(node.Name)
		c.ordered = slices.Insert(c.ordered, at, n)
	}
	n.node = node
	n.allocatable = resourcesOf(node.Status.Allocatable)
	n.allowedPods = node.Status.Allocatable.Pods().Value()
}

// RemoveNode takes a node out; what its Pods take is kept for its return.
func (c *Cluster) RemoveNode(name string) {
	n := c.byName[name]
	if n == nil || n.node == nil {
		return
	}
	c.version++
	at, _ := c.position(name)
	c.ordered = slices.Delete(c.ordered, at, at+1)
	n.node, n.allocatable, n.allowedPods = nil, Resources{}, 0
	c.forgetIfUnused(n)
}

// SetPod counts pod on the node it names, in place of what it took before. A
// Pod that names no node, or has ended, takes nothing.
func (c *Cluster) SetPod(pod *v1.Pod) {
	if pod.Spec.NodeName == "" || isTerminal(pod) {
		c.RemovePod(pod.UID)
		return
	}
	p := placement{node: pod.Spec.NodeName, amounts: amountsOf(pod, true), ports: hostPortsOf(pod)}
	// A Pod that is on its way out must not keep its replacement away.
	if pod.DeletionTimestamp == nil {
		p.controller = controllerOf(pod)
	}
	c.place(pod.UID, p)
}

// assume counts a Pod on a node that it is about to be bound to.
func (c *Cluster) assume(pod types.UID, d *Demand, node string) {
	c.place(pod, placement{node: node, amounts: d.amounts, ports: d.ports, controller: d.controller})
}

// RemovePod takes a Pod out and returns the node on which that freed something,
// or "".
func (c *Cluster) RemovePod(uid types.UID) string {
	old, ok := c.pods[uid]
	if !ok {
		return ""
	}
	c.version++
	delete(c.pods, uid)
	n := c.byName[old.node]
	n.count(old, -1)
	c.forgetIfUnused(n)
	return old.node
}

// placementOf returns what the Pod takes at present.
func (c *Cluster) placementOf(uid types.UID) (placement, bool) {
	p, ok := c.pods[uid]
	return p, ok
}

func (c *Cluster) place(uid types.UID, p placement) {
	if old, ok := c.pods[uid]; ok {
		if old.equal(p) {
			return
		}
		c.RemovePod(uid)
	}
	c.version++
	c.pods[uid] = p
	c.state(p.node).count(p, 1)
}

func (c *Cluster) state(name string) *nodeState {
	n := c.byName[name]
	if n == nil {
		n = &nodeState{name: name, ports: map[hostPort]int{}, siblings: map[types.UID]int64{}}
		c.byName[name] = n
	}
	return n
}

func (c *Cluster) position(name string) (int, bool) {
	return slices.BinarySearchFunc(c.ordered, name, func(n *nodeState, name string) int {
		return cmp.Compare(n.name, name)
	})
}

func (c *Cluster) forgetIfUnused(n *nodeState) {
	if n.node == nil && n.pods == 0 {
		delete(c.byName, n.name)
	}
}

func (n *nodeState) count(p placement, sign int64) {
	n.pods += sign
	n.requested.add(p.requests, sign)
	n.scoreCPU += sign * p.scoreCPU
	n.scoreMemory += sign * p.scoreMemory
	for _, port := range p.ports {
		if n.ports[port] += int(sign); n.ports[port] == 0 {
			delete(n.ports, port)
		}
	}
	if p.controller != "" {
		if n.siblings[p.controller] += sign; n.siblings[p.controller] == 0 {
			delete(n.siblings, p.controller)
		}
	}
}

func (p placement) equal(other placement) bool {
	return p.node == other.node && p.controller == other.controller &&
		p.scoreCPU == other.scoreCPU && p.scoreMemory == other.scoreMemory &&
		p.requests.equal(other.requests) && slices.Equal(p.ports, other.ports)
}

func isTerminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// controllerOf is the UID of what keeps pod's count, or "".
func controllerOf(pod *v1.Pod) types.UID {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		return ref.UID
	}
	return ""
}

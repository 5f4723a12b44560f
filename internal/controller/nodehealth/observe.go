package nodehealth

import (
	"context"
	"fmt"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// byNode is this loop's index of Pods.
const byNode = "nodehealth:spec.nodeName"

// observe returns what there is to know about the node, and false when it does
// not exist.
func (c *controller) observe(ctx context.Context, name string) (Observed, bool, error) {
	obj, exists, err := c.nodes.GetByKey(name)
	if err != nil {
		return Observed{}, false, fmt.Errorf("read node: %w", err)
	}
	if !exists {
		c.writes.Forget(name)
		if uid := c.fleet.forget(name); uid != "" {
			c.removed(name, uid)
		}
		return Observed{}, false, nil
	}
	node := obj.(*v1.Node)
	if err := c.confirmSilence(ctx, node); err != nil {
		return Observed{}, false, err
	}
	now := c.clock.Now()
	o := Observed{Node: node, IsNew: !c.fleet.isAnnounced(name)}
	// The brake first: when it is released, silences begin anew.
	o.Brake = c.fleet.brakeFor(name, now)
	o.Silence = c.fleet.silenceOf(name, now)
	if o.Silence.isOver(now) {
		if o.Pods, err = c.podsOn(name); err != nil {
			return Observed{}, false, err
		}
	}
	return o, true, nil
}

// confirmSilence reads the Lease of a node that is about to be called silent
// past the cache, which may be what is silent.
func (c *controller) confirmSilence(ctx context.Context, node *v1.Node) error {
	now := c.clock.Now()
	ready := conditionOf(node, v1.NodeReady)
	if !c.fleet.silenceOf(node.Name, now).isOver(now) || ready != nil && ready.Status == v1.ConditionUnknown {
		return nil
	}
	lease, err := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, node.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("confirm that node %s is silent: %w", node.Name, err)
	}
	if c.fleet.sawLease(lease, c.clock.Now()) {
		c.log.Info("node was heard past the cache", "node", node.Name)
	}
	return nil
}

func (c *controller) podsOn(node string) ([]*v1.Pod, error) {
	objs, err := c.pods.ByIndex(byNode, node)
	if err != nil {
		return nil, fmt.Errorf("list pods of node: %w", err)
	}
	pods := make([]*v1.Pod, 0, len(objs))
	for _, obj := range objs {
		pods = append(pods, obj.(*v1.Pod))
	}
	return pods, nil
}

func (c *controller) nodeHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.nodeSeen(nil, obj.(*v1.Node)) },
		UpdateFunc: func(old, obj any) {
			before, node := old.(*v1.Node), obj.(*v1.Node)
			if before.UID != node.UID {
				c.forgetNode(before.Name, before.UID)
				before = nil
			}
			c.nodeSeen(before, node)
		},
		DeleteFunc: func(obj any) {
			if late, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = late.Obj
			}
			if node, ok := obj.(*v1.Node); ok {
				c.forgetNode(node.Name, node.UID)
			}
		},
	}
}

func (c *controller) nodeSeen(before, node *v1.Node) {
	now := c.clock.Now()
	wasSilent := c.fleet.silenceOf(node.Name, now).isOver(now)
	changed := c.fleet.sawNode(node, c.leaseOf(node.Name), now)
	switch {
	case changed.counts:
		c.everyNode()
	case before == nil, changed.isSign && wasSilent, matters(before, node):
		c.again(node.Name)
	}
}

// leaseOf is the node's Lease in the cache, or nil.
func (c *controller) leaseOf(node string) *coordination.Lease {
	obj, _, err := c.leases.GetByKey(cache.NewObjectName(v1.NamespaceNodeLease, node).String())
	if err != nil {
		return nil
	}
	lease, _ := obj.(*coordination.Lease)
	return lease
}

func (c *controller) forgetNode(name string, uid types.UID) {
	if c.fleet.forget(name) != "" {
		c.removed(name, uid)
	}
	c.everyNode()
}

// everyNode has all nodes looked at: the brake is for all of them.
func (c *controller) everyNode() {
	for _, name := range c.nodes.ListKeys() {
		c.again(name)
	}
}

func (c *controller) leaseHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		lease := obj.(*coordination.Lease)
		if lease.Namespace != v1.NamespaceNodeLease {
			return
		}
		now := c.clock.Now()
		wasSilent := c.fleet.silenceOf(lease.Name, now).isOver(now)
		if c.fleet.sawLease(lease, now) && wasSilent {
			c.again(lease.Name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
	}
}

// podHandler looks for Pods that become ready, or are made, on a silent node.
func (c *controller) podHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		pod := obj.(*v1.Pod)
		if pod.Spec.NodeName == "" || len(planPods([]*v1.Pod{pod})) == 0 {
			return
		}
		now := c.clock.Now()
		if c.fleet.silenceOf(pod.Spec.NodeName, now).isOver(now) {
			c.again(pod.Spec.NodeName)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
	}
}

// matters says whether a node changed in what its taints depend on.
func matters(before, node *v1.Node) bool {
	if before.Spec.Unschedulable != node.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, node.Spec.Taints) ||
		len(before.Status.Conditions) != len(node.Status.Conditions) {
		return true
	}
	for _, now := range node.Status.Conditions {
		if was := conditionOf(before, now.Type); was == nil || was.Status != now.Status {
			return true
		}
	}
	return false
}

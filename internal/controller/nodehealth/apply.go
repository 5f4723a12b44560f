package nodehealth

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/loop"
)

// apply carries actions out, each write on the version that it was planned for.
// A conflict means that the node spoke up meanwhile: then all is planned anew.
func (c *controller) apply(ctx context.Context, node *v1.Node, actions []Action) error {
	for _, action := range actions {
		var err error
		switch a := action.(type) {
		case Register:
			c.events.Event(reference(node.Name, node.UID), v1.EventTypeNormal, "RegisteredNode", a.Why)
			c.fleet.announced(node.Name)
		case SetUnknown:
			node, err = c.setUnknown(ctx, node, a)
		case SetTaints:
			node, err = c.setTaints(ctx, node, a)
		case MarkPod:
			err = c.markPod(ctx, node, a)
		default:
			err = fmt.Errorf("unknown action %T", action)
		}
		switch {
		case apierrors.IsNotFound(err):
			return nil // gone, and its deletion is on its way here
		case apierrors.IsConflict(err):
			return loop.ErrStale
		case err != nil:
			return err
		}
	}
	return nil
}

func (c *controller) setUnknown(ctx context.Context, node *v1.Node, a SetUnknown) (*v1.Node, error) {
	now := metav1.NewTime(c.clock.Now())
	conditions := slices.Clone(a.Conditions)
	for i := range conditions {
		conditions[i].LastTransitionTime, conditions[i].LastHeartbeatTime = now, node.CreationTimestamp
		if old := conditionOf(node, conditions[i].Type); old != nil {
			conditions[i].LastHeartbeatTime = old.LastHeartbeatTime
		}
	}
	patch := map[string]any{"status": map[string]any{"conditions": conditions}}
	updated, err := c.patchNode(ctx, node, types.StrategicMergePatchType, patch, "status")
	if err != nil {
		return nil, err
	}
	c.log.Warn("node is silent", "node", node.Name)
	if a.WasReady {
		c.events.Event(reference(node.Name, node.UID), v1.EventTypeNormal, "NodeNotReady", a.Why)
	}
	return updated, nil
}

func (c *controller) setTaints(ctx context.Context, node *v1.Node, a SetTaints) (*v1.Node, error) {
	now := metav1.NewTime(c.clock.Now())
	taints := []v1.Taint{} // an empty list takes the last one away; nil would too, but reads as a mistake
	for _, taint := range node.Spec.Taints {
		if !hasTaint(a.Remove, taint) {
			taints = append(taints, taint)
		}
	}
	for _, taint := range a.Add {
		taint.TimeAdded = &now
		taints = append(taints, taint)
	}
	patch := map[string]any{"spec": map[string]any{"taints": taints}}
	updated, err := c.patchNode(ctx, node, types.MergePatchType, patch)
	if err != nil {
		return nil, err
	}
	if a.Evicts {
		c.fleet.tookTurn(node.Name, c.clock.Now())
	}
	c.log.Info("node taints changed", "node", node.Name, "added", a.Add, "removed", a.Remove, "why", a.Why)
	return updated, nil
}

func (c *controller) patchNode(ctx context.Context, node *v1.Node, kind types.PatchType, patch map[string]any, subresources ...string) (*v1.Node, error) {
	patch["metadata"] = map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	updated, err := c.client.CoreV1().Nodes().Patch(ctx, node.Name, kind, body, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return nil, err
	}
	c.writes.Wrote(node.Name, "nodes", updated)
	return updated, nil
}

func (c *controller) markPod(ctx context.Context, node *v1.Node, a MarkPod) error {
	condition := v1.PodCondition{}
	for _, old := range a.Pod.Status.Conditions {
		if old.Type == v1.PodReady {
			condition = old
		}
	}
	condition.Status, condition.LastTransitionTime = v1.ConditionFalse, metav1.NewTime(c.clock.Now())
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.Pod.UID, "resourceVersion": a.Pod.ResourceVersion},
		"status":   map[string]any{"conditions": []v1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	updated, err := c.client.CoreV1().Pods(a.Pod.Namespace).Patch(ctx, a.Pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return nil // the next Pod's turn
	case err != nil:
		return err
	}
	c.writes.Wrote(node.Name, "pods", updated)
	c.events.Event(a.Pod, v1.EventTypeWarning, "NodeNotReady", a.Why)
	return nil
}

// removed tells people that the node is no longer watched.
func (c *controller) removed(name string, uid types.UID) {
	c.events.Eventf(reference(name, uid), v1.EventTypeNormal, "RemovingNode",
		"Node %s event: Removing Node %s from Controller", name, name)
}

// reference is what kubectl describe looks a node's events up by.
func reference(name string, uid types.UID) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
}

package tainteviction

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// apply writes the condition before it deletes, so that whoever sees the
// deletion can see why. Both have the Pod's UID as a precondition.
func (c *controller) apply(ctx context.Context, key string, pod *v1.Pod, plan Plan) error {
	if plan.Cancel != nil {
		c.events.Event(pod, v1.EventTypeNormal, eventReason, plan.Cancel.Why)
	}
	if plan.Evict == nil {
		return nil
	}
	c.log.Info("evicting pod", "pod", pod.Namespace+"/"+pod.Name, "node", pod.Spec.NodeName)
	c.events.Event(pod, v1.EventTypeNormal, eventReason, plan.Evict.Why)
	if err := c.markDisrupted(ctx, pod); err != nil {
		return ignoreGone(err)
	}
	err := c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err == nil {
		c.writes.Deleted(key, "pods", pod)
	}
	return ignoreGone(err)
}

func (c *controller) markDisrupted(ctx context.Context, pod *v1.Pod) error {
	condition := v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "DeletionByTaintManager",
		Message:            "Taint manager: deleting due to NoExecute taint",
		ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	}
	for _, old := range pod.Status.Conditions {
		if old.Type == condition.Type && old.Status == condition.Status && old.Reason == condition.Reason {
			return nil
		}
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []v1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	return err
}

// ignoreGone takes a Pod that is gone, or another under its name, for evicted.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

package podgc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// apply goes on past a Pod that cannot be ended, for Pods do not depend on one
// another, and returns all errors.
func (c *controller) apply(ctx context.Context, p Plan) error {
	var failures []error
	for _, a := range p.Actions {
		c.log.Info("force delete pod", "namespace", a.Pod.Namespace, "pod", a.Pod.Name, "node", a.Pod.Spec.NodeName, "why", a.Why)
		if err := c.end(ctx, a); err != nil && !apierrors.IsNotFound(err) {
			failures = append(failures, fmt.Errorf("end pod %s/%s: %w", a.Pod.Namespace, a.Pod.Name, err))
		}
	}
	return errors.Join(failures...)
}

// end marks before it deletes: a finalizer may keep the Pod, and nobody on a
// lost node would ever say that it ended.
func (c *controller) end(ctx context.Context, a End) error {
	pods := c.client.CoreV1().Pods(a.Pod.Namespace)
	if a.Status != nil {
		patch, err := statusPatch(a.Pod, *a.Status)
		if err != nil {
			return err
		}
		if _, err := pods.Patch(ctx, a.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	opts := metav1.NewDeleteOptions(0)
	opts.Preconditions = metav1.NewUIDPreconditions(string(a.Pod.UID))
	err := pods.Delete(ctx, a.Pod.Name, *opts)
	if apierrors.IsConflict(err) {
		return nil // another Pod by now has the name
	}
	return err
}

// statusPatch has only what changes, and the UID as precondition.
func statusPatch(pod *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: pod.Status})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: status})
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
}

package namespace

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apply goes on past a kind that cannot be deleted: kinds do not depend on one
// another. The next pass reports what failed. Every write to the namespace
// carries the resourceVersion it was observed at.
func (c *controller) apply(ctx context.Context, n *corev1.Namespace, p Plan) error {
	done := c.memoryOf(n.UID).next()
	for _, a := range p.Actions {
		c.log.Debug("delete content", "namespace", n.Name, "resource", a.Resource.String(), "count", len(a.Names), "why", a.Why)
		done.attempts[a.Resource]++
		if err := c.deleteContent(ctx, n.Name, a); err != nil {
			done.failures[a.Resource] = err.Error()
		}
	}
	c.remember(n.UID, done)
	if p.Status != nil {
		updated := n.DeepCopy()
		updated.Status = *p.Status
		result, err := c.client.CoreV1().Namespaces().UpdateStatus(ctx, updated, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update status of namespace %s: %w", n.Name, err)
		}
		n = result
	}
	if p.Finalize != nil {
		updated := n.DeepCopy()
		updated.Spec.Finalizers = *p.Finalize
		if _, err := c.client.CoreV1().Namespaces().Finalize(ctx, updated, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("finalize namespace %s: %w", n.Name, err)
		}
		c.forget(n.UID)
	}
	return nil
}

// deleteContent deletes in the background: what these objects own is in the
// namespace too, or is the garbage loop's.
func (c *controller) deleteContent(ctx context.Context, namespace string, a Action) error {
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	resource := c.metadata.Resource(a.Resource).Namespace(namespace)
	if a.InBulk {
		return ignoreGone(resource.DeleteCollection(ctx, opts, metav1.ListOptions{}))
	}
	for _, name := range a.Names {
		if err := ignoreGone(resource.Delete(ctx, name, opts)); err != nil {
			return err
		}
	}
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil
	}
	return err
}

package endpoints

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/loop"
)

// apply carries the plan out and stops at the first error.
func (c *controller) apply(ctx context.Context, key string, o Observed, p Plan) error {
	for _, action := range p.Actions {
		if err := c.act(ctx, key, o, action); err != nil {
			return err
		}
	}
	return nil
}

func (c *controller) act(ctx context.Context, key string, o Observed, action Action) error {
	switch a := action.(type) {
	case Create:
		made, err := c.client.CoreV1().Endpoints(a.Endpoints.Namespace).Create(ctx, a.Endpoints, metav1.CreateOptions{})
		return c.settle(key, o, made, err, "FailedToCreateEndpoint", "create")
	case Update:
		made, err := c.client.CoreV1().Endpoints(a.Endpoints.Namespace).Update(ctx, a.Endpoints, metav1.UpdateOptions{})
		return c.settle(key, o, made, err, "FailedToUpdateEndpoint", "update")
	case Delete:
		err := c.client.CoreV1().Endpoints(a.Endpoints.Namespace).Delete(ctx, a.Endpoints.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &a.Endpoints.UID, ResourceVersion: &a.Endpoints.ResourceVersion},
		})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case apierrors.IsConflict(err):
			return loop.ErrStale
		case err != nil:
			return fmt.Errorf("delete Endpoints %s: %w", key, err)
		}
		c.writes.Deleted(key, "endpoints", a.Endpoints)
		c.log.Info("deleted Endpoints", "key", key, "why", a.Why)
		return nil
	}
	return fmt.Errorf("unknown action %T", action)
}

// settle says what a write's answer means. A write that met a newer object starts anew
// with that one's event.
func (c *controller) settle(key string, o Observed, made *v1.Endpoints, err error, reason, verb string) error {
	switch {
	case err == nil:
		c.writes.Wrote(key, "endpoints", made)
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return loop.ErrStale
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil
	}
	c.events.Eventf(o.Service, v1.EventTypeWarning, reason, "Failed to %s endpoint for service %v: %v", verb, key, err)
	return fmt.Errorf("%s Endpoints %s: %w", verb, key, err)
}

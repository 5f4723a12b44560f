package mirror

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
	for _, note := range p.Notes {
		if len(p.Actions) > 0 { // not again and again
			c.events.Event(o.Endpoints, v1.EventTypeWarning, note.Reason, note.Message)
		}
	}
	for _, action := range p.Actions {
		if err := c.act(ctx, key, action); err != nil {
			return err
		}
	}
	return nil
}

func (c *controller) act(ctx context.Context, key string, action Action) error {
	switch a := action.(type) {
	case Create:
		made, err := c.client.DiscoveryV1().EndpointSlices(a.Slice.Namespace).Create(ctx, a.Slice, metav1.CreateOptions{})
		if err == nil {
			c.writes.Wrote(key, "endpointslices", made)
		}
		return meaning(err, "create")
	case Update:
		made, err := c.client.DiscoveryV1().EndpointSlices(a.Slice.Namespace).Update(ctx, a.Slice, metav1.UpdateOptions{})
		if err == nil {
			c.writes.Wrote(key, "endpointslices", made)
		}
		return meaning(err, "update")
	case Delete:
		err := c.client.DiscoveryV1().EndpointSlices(a.Slice.Namespace).Delete(ctx, a.Slice.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &a.Slice.UID, ResourceVersion: &a.Slice.ResourceVersion},
		})
		if err == nil {
			c.writes.Deleted(key, "endpointslices", a.Slice)
		}
		return meaning(err, "delete")
	}
	return fmt.Errorf("unknown action %T", action)
}

// meaning says what a write's answer means. A write that met a newer object starts anew
// with that one's event.
func meaning(err error, verb string) error {
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsConflict(err):
		return loop.ErrStale
	}
	return fmt.Errorf("%s mirrored EndpointSlice: %w", verb, err)
}

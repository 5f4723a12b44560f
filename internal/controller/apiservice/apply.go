package apiservice

import (
	"context"

	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/loop"
)

// apply writes what the plan names. That somebody was faster is no failure: the
// cache will show it.
func (c *controller) apply(ctx context.Context, plan Plan) error {
	core := c.client.CoreV1()
	discovered := c.client.DiscoveryV1().EndpointSlices(namespace)
	if plan.Service != nil {
		if err := write(ctx, c, "services", plan.Service, core.Services(namespace).Create, core.Services(namespace).Update); err != nil {
			return err
		}
	}
	if plan.Endpoints != nil {
		if err := write(ctx, c, "endpoints", plan.Endpoints, core.Endpoints(namespace).Create, core.Endpoints(namespace).Update); err != nil {
			return err
		}
	}
	if plan.ReplaceSlice != nil {
		if err := c.deleteSlice(ctx, plan.ReplaceSlice); err != nil {
			return err
		}
	}
	if plan.Slice != nil {
		return write(ctx, c, "endpointslices", plan.Slice, discovered.Create, discovered.Update)
	}
	return nil
}

func (c *controller) deleteSlice(ctx context.Context, slice *discovery.EndpointSlice) error {
	err := c.client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, slice.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &slice.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// write creates the object, or updates it on the version that it was planned
// for.
func write[T metav1.Object](ctx context.Context, c *controller, resource string, obj T,
	create func(context.Context, T, metav1.CreateOptions) (T, error),
	update func(context.Context, T, metav1.UpdateOptions) (T, error),
) error {
	var written T
	var err error
	if obj.GetResourceVersion() == "" {
		written, err = create(ctx, obj, metav1.CreateOptions{})
	} else {
		written, err = update(ctx, obj, metav1.UpdateOptions{})
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return loop.ErrStale
	}
	if err != nil {
		return err
	}
	c.writes.Wrote(key, resource, written)
	return nil
}

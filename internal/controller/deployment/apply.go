package deployment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"mend/internal/loop"
	"mend/internal/ownership"
)

// reasonScaling is the reason of the events that tell of new sizes.
const reasonScaling = "ScalingReplicaSet"

// refusedError is a creation of a ReplicaSet that the API server refused.
type refusedError struct {
	name      string
	nameTaken bool
	err       error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("create ReplicaSet %s: %v", e.name, e.err)
}
func (e *refusedError) Unwrap() error { return e.err }

// errNamespaceEnds ends a plan quietly: nothing can be created there again.
var errNamespaceEnds = errors.New("namespace is being terminated")

// apply carries the plan out and stops at the first error. A write that found
// a newer object than was observed ends in [loop.ErrStale]: the event that brings
// the newer one starts the next plan.
func (c *Controller) apply(ctx context.Context, key string, o Observed, p Plan) error {
	if slices.ContainsFunc(p.Actions, isAdopt) {
		if err := c.recheckOwner(ctx, o.Deployment); err != nil {
			return err
		}
	}
	for _, action := range p.Actions {
		err := c.act(ctx, key, o.Deployment, action)
		if errors.Is(err, errNamespaceEnds) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	if p.Status == nil {
		return nil
	}
	return c.writeStatus(ctx, key, o.Deployment, p)
}

func (c *Controller) act(ctx context.Context, key string, d *apps.Deployment, action Action) error {
	switch a := action.(type) {
	case Adopt:
		return c.adopt(ctx, key, d, a)
	case Release:
		return c.release(ctx, key, d, a)
	case Create:
		return c.create(ctx, key, d, a)
	case Update:
		return c.update(ctx, key, d, a)
	case Delete:
		return c.delete(ctx, key, a)
	case Notice:
		c.events.Event(d, v1.EventTypeWarning, a.Reason, a.Why)
		return nil
	}
	return fmt.Errorf("unknown action %T", action)
}

func isAdopt(action Action) bool {
	_, ok := action.(Adopt)
	return ok
}

// recheckOwner reads the Deployment past the cache before it adopts anything: a
// cache that has not seen its deletion would tie ReplicaSets to an owner that is
// gone.
func (c *Controller) recheckOwner(ctx context.Context, d *apps.Deployment) error {
	fresh, err := c.client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("recheck Deployment before adoption: %w", err)
	}
	return ownership.StillOwns(d, fresh)
}

func (c *Controller) adopt(ctx context.Context, key string, d *apps.Deployment, a Adopt) error {
	patch := ownership.AdoptPatch(a.ReplicaSet, d, kind)
	rs, err := c.client.AppsV1().ReplicaSets(d.Namespace).Patch(ctx, a.ReplicaSet.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err := ownership.AfterAdopt(err); err != nil {
		return fmt.Errorf("adopt ReplicaSet %s: %w", a.ReplicaSet.Name, err)
	}
	c.writes.Wrote(key, "replicasets", rs)
	c.log.Info("adopted ReplicaSet", "key", key, "replicaSet", rs.Name, "why", a.Why)
	return nil
}

func (c *Controller) release(ctx context.Context, key string, d *apps.Deployment, a Release) error {
	patch := ownership.ReleasePatch(a.ReplicaSet, d)
	rs, err := c.client.AppsV1().ReplicaSets(d.Namespace).Patch(ctx, a.ReplicaSet.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if gone, err := ownership.AfterRelease(err); err != nil {
		return fmt.Errorf("release ReplicaSet %s: %w", a.ReplicaSet.Name, err)
	} else if gone {
		return nil
	}
	c.writes.Wrote(key, "replicasets", rs)
	c.log.Info("released ReplicaSet", "key", key, "replicaSet", rs.Name, "why", a.Why)
	return nil
}

func (c *Controller) create(ctx context.Context, key string, d *apps.Deployment, a Create) error {
	name := a.ReplicaSet.Name
	rs, err := c.client.AppsV1().ReplicaSets(d.Namespace).Create(ctx, a.ReplicaSet, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return &refusedError{name: name, nameTaken: true, err: err}
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return errNamespaceEnds
	case err != nil && ctx.Err() != nil:
		return ctx.Err() // this process ends: nobody was refused anything
	case err != nil:
		c.events.Eventf(d, v1.EventTypeWarning, reasonCreateError, "Failed to create new replica set %q: %v", name, err)
		return &refusedError{name: name, err: err}
	}
	c.writes.Wrote(key, "replicasets", rs)
	if *a.ReplicaSet.Spec.Replicas > 0 {
		c.events.Event(d, v1.EventTypeNormal, reasonScaling, a.Why)
	}
	c.log.Info("created ReplicaSet", "key", key, "replicaSet", name, "why", a.Why)
	return nil
}

func (c *Controller) update(ctx context.Context, key string, d *apps.Deployment, a Update) error {
	next := a.ReplicaSet.DeepCopy() // its UID and resourceVersion are the precondition
	next.Spec.Replicas = ptr.To(a.Replicas)
	next.Spec.MinReadySeconds = a.MinReadySeconds
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Annotations, a.Annotations)
	rs, err := c.client.AppsV1().ReplicaSets(d.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("update ReplicaSet %s: %w", next.Name, err)
	}
	c.writes.Wrote(key, "replicasets", rs)
	if a.Replicas != sizeOf(a.ReplicaSet) {
		c.events.Event(d, v1.EventTypeNormal, reasonScaling, a.Why)
	}
	c.log.Info("updated ReplicaSet", "key", key, "replicaSet", rs.Name, "why", a.Why)
	return nil
}

func (c *Controller) delete(ctx context.Context, key string, a Delete) error {
	rs := a.ReplicaSet
	err := c.client.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &rs.UID, ResourceVersion: ptr.To(rs.ResourceVersion)},
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("delete ReplicaSet %s: %w", rs.Name, err)
	}
	c.writes.Deleted(key, "replicasets", rs)
	c.log.Info("deleted ReplicaSet", "key", key, "replicaSet", rs.Name, "why", a.Why)
	return nil
}

// writeStatus writes the status and with it, as Kubernetes does, the revision.
func (c *Controller) writeStatus(ctx context.Context, key string, d *apps.Deployment, p Plan) error {
	next := d.DeepCopy() // its UID and resourceVersion are the precondition
	next.Status = *p.Status
	// kubectl rollout undo copies a ReplicaSet's annotations to the Deployment, this
	// one too, where it means nothing.
	delete(next.Annotations, inheritedAnnotation)
	if p.Revision != "" {
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[revisionAnnotation] = p.Revision
	}
	written, err := c.client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write status: %w", err)
	}
	c.writes.Wrote(key, "deployments", written)
	return nil
}

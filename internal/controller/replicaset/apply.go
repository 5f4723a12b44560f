package replicaset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"mend/internal/loop"
	"mend/internal/ownership"
)

// parallel is how many Pods are created or deleted at once. More does not help:
// the store commits what waits together, and each write in flight holds memory.
const parallel = 64

// refusedError is a create or delete of a Pod that the API server refused.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// errNamespaceEnds ends creation quietly: no Pod can be created there again.
var errNamespaceEnds = errors.New("namespace is being terminated")

// apply carries the plan out and stops at the first error. A write that found
// a newer object than was observed ends in [loop.ErrStale]: the event that brings
// the newer one starts the next plan.
func (c *Controller) apply(ctx context.Context, key string, o Observed, p Plan) error {
	if slices.ContainsFunc(p.Actions, isAdopt) {
		if err := c.recheckOwner(ctx, o.ReplicaSet); err != nil {
			return err
		}
	}
	for _, action := range p.Actions {
		if err := c.act(ctx, key, o.ReplicaSet, action); err != nil {
			return err
		}
	}
	if p.Status == nil {
		return nil
	}
	return c.writeStatus(ctx, key, o.ReplicaSet, *p.Status)
}

func (c *Controller) act(ctx context.Context, key string, rs *apps.ReplicaSet, action Action) error {
	switch a := action.(type) {
	case Adopt:
		return c.adopt(ctx, key, rs, a)
	case Release:
		return c.release(ctx, key, rs, a)
	case CreatePods:
		c.log.Info("creating Pods", "key", key, "count", a.Count, "why", a.Why)
		return c.createPods(ctx, key, rs, a.Count)
	case DeletePods:
		c.log.Info("deleting Pods", "key", key, "count", len(a.Pods), "why", a.Why)
		return inParallel(c.parallel, len(a.Pods), func(i int) error { return c.deletePod(ctx, key, rs, a.Pods[i]) })
	}
	return fmt.Errorf("unknown action %T", action)
}

func isAdopt(action Action) bool {
	_, ok := action.(Adopt)
	return ok
}

// recheckOwner reads the ReplicaSet past the cache before it adopts anything: a
// cache that has not seen its deletion would tie Pods to an owner that is gone.
func (c *Controller) recheckOwner(ctx context.Context, rs *apps.ReplicaSet) error {
	fresh, err := c.client.AppsV1().ReplicaSets(rs.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("recheck ReplicaSet before adoption: %w", err)
	}
	return ownership.StillOwns(rs, fresh)
}

func (c *Controller) adopt(ctx context.Context, key string, rs *apps.ReplicaSet, a Adopt) error {
	patch := ownership.AdoptPatch(a.Pod, rs, kind)
	pod, err := c.client.CoreV1().Pods(rs.Namespace).Patch(ctx, a.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err := ownership.AfterAdopt(err); err != nil {
		return fmt.Errorf("adopt Pod %s: %w", a.Pod.Name, err)
	}
	c.writes.Wrote(key, "pods", pod)
	c.log.Info("adopted Pod", "key", key, "pod", pod.Name, "why", a.Why)
	return nil
}

func (c *Controller) release(ctx context.Context, key string, rs *apps.ReplicaSet, a Release) error {
	patch := ownership.ReleasePatch(a.Pod, rs)
	pod, err := c.client.CoreV1().Pods(rs.Namespace).Patch(ctx, a.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if gone, err := ownership.AfterRelease(err); err != nil {
		return fmt.Errorf("release Pod %s: %w", a.Pod.Name, err)
	} else if gone {
		return nil
	}
	c.writes.Wrote(key, "pods", pod)
	c.log.Info("released Pod", "key", key, "pod", pod.Name, "why", a.Why)
	return nil
}

// createPods creates in growing batches, so that a refusal that would meet all
// of them costs one request instead of hundreds.
func (c *Controller) createPods(ctx context.Context, key string, rs *apps.ReplicaSet, count int) error {
	for _, batch := range slowStart(count) {
		err := inParallel(c.parallel, batch, func(int) error { return c.createPod(ctx, key, rs) })
		if errors.Is(err, errNamespaceEnds) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// slowStart splits count into batches of 1, 2, 4, …: 10 is 1, 2, 4, 3.
func slowStart(count int) []int {
	var batches []int
	for size := 1; count > 0; size *= 2 {
		batch := min(size, count)
		batches = append(batches, batch)
		count -= batch
	}
	return batches
}

func (c *Controller) createPod(ctx context.Context, key string, rs *apps.ReplicaSet) error {
	pod, err := c.client.CoreV1().Pods(rs.Namespace).Create(ctx, podFor(rs), metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return errNamespaceEnds
	case err != nil && ctx.Err() != nil:
		return ctx.Err() // this process ends: nobody was refused anything
	case err != nil:
		c.events.Eventf(rs, v1.EventTypeWarning, reasonFailedCreate, "Error creating: %v", err)
		return &refusedError{err}
	}
	c.writes.Wrote(key, "pods", pod)
	c.events.Eventf(rs, v1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", pod.Name)
	return nil
}

// podFor is the Pod that the template asks for; the API server names it. The copy
// is deep because encoding writes into quantities, and rs is the cache's.
func podFor(rs *apps.ReplicaSet) *v1.Pod {
	template := &rs.Spec.Template
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    rs.Name + "-", // the API server cuts it where it is too long
			Namespace:       rs.Namespace,
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			Finalizers:      slices.Clone(template.Finalizers),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(rs, kind)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
}

func (c *Controller) deletePod(ctx context.Context, key string, rs *apps.ReplicaSet, pod *v1.Pod) error {
	err := c.client.CoreV1().Pods(rs.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: ptr.To(pod.ResourceVersion)},
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return loop.ErrStale // it changed since it was chosen; perhaps it is ready now
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		c.events.Eventf(rs, v1.EventTypeWarning, reasonFailedDelete, "Error deleting: %v", err)
		return &refusedError{fmt.Errorf("unable to delete pods: %w", err)}
	}
	c.writes.Deleted(key, "pods", pod)
	c.events.Eventf(rs, v1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
	return nil
}

func (c *Controller) writeStatus(ctx context.Context, key string, rs *apps.ReplicaSet, status apps.ReplicaSetStatus) error {
	next := rs.DeepCopy() // its UID and resourceVersion are the precondition
	next.Status = status
	written, err := c.client.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write status: %w", err)
	}
	c.writes.Wrote(key, "replicasets", written)
	c.statuses.wrote(key, c.clock.Now())
	return nil
}

// inParallel calls do(0) … do(n-1), at most limit at once, waits for all and
// returns a refusal if there was one, otherwise the first error by index.
func inParallel(limit, n int, do func(i int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, limit)
	var running sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	running.Wait()
	var first error // the others are nearly always the same
	for _, err := range errs {
		var refused *refusedError
		if errors.As(err, &refused) {
			return refused
		}
		if first == nil {
			first = err
		}
	}
	return first
}

package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// server is the API as this loop uses it. Errors are the API's own
// (apimachinery's StatusError), but for errNotServed.
type server interface {
	get(ctx context.Context, kind Kind, namespace, name string) (Object, error)
	// list is as fresh as the moment of the call. namespace "" means all.
	list(ctx context.Context, kind Kind, namespace string) ([]Object, error)
	delete(ctx context.Context, target Object, opts metav1.DeleteOptions) error
	patch(ctx context.Context, target Object, ops []op) error
}

// op is one operation of a JSON patch. Every kind accepts these, custom ones
// too, and its tests are exact preconditions that the writes of others to other
// fields do not break, as a resourceVersion would.
type op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// apply keeps the plan's order, but for a row of DropOwners: those are about
// different objects, and an owner may orphan thousands.
func (c *controller) apply(ctx context.Context, p Plan) error {
	for rest := p.Actions; len(rest) > 0; {
		n := max(1, leadingDrops(rest))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(c.dropsAtOnce)
		for _, action := range rest[:n] {
			group.Go(func() error { return c.applyOne(ctx, action) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

func leadingDrops(actions []Action) int {
	n := slices.IndexFunc(actions, func(a Action) bool { _, isDrop := a.(DropOwners); return !isDrop })
	if n < 0 {
		return len(actions)
	}
	return n
}

func (c *controller) applyOne(ctx context.Context, action Action) error {
	switch a := action.(type) {
	case Delete:
		c.log.Debug("delete", "object", a.Target.String(), "policy", a.Policy, "why", a.Why)
		uid, resourceVersion := a.Target.UID, a.Target.ResourceVersion
		err := c.owners.server.delete(ctx, a.Target, metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion},
			PropagationPolicy: &a.Policy,
		})
		return wrap("delete", a.Target, ignoreGone(err))
	case DropOwners:
		c.log.Debug("drop owner references", "object", a.Target.String(), "references", names(a.Refs), "why", a.Why)
		return wrap("drop owner references of", a.Target, c.change(ctx, a.Target, func(o Object) []op { return dropOwners(o, a.Refs) }))
	case Unblock:
		c.log.Info("break circle of foreground deletions", "object", a.Target.String(), "owner", a.Owner, "why", a.Why)
		return wrap("unblock owner of", a.Target, c.change(ctx, a.Target, func(o Object) []op { return unblock(o, a.Owner) }))
	case Release:
		c.log.Debug("release finalizer", "object", a.Target.String(), "finalizer", a.Finalizer, "why", a.Why)
		return wrap("release finalizer of", a.Target, c.change(ctx, a.Target, func(o Object) []op { return release(o, a.Finalizer) }))
	case Examine:
		c.examine(a.UID)
	case Report:
		c.events.Event(&corev1.ObjectReference{
			APIVersion: a.Target.Kind.APIVersion(), Kind: a.Target.Kind.Kind,
			Namespace: a.Target.Namespace, Name: a.Target.Name, UID: a.Target.UID,
		}, corev1.EventTypeWarning, a.Reason, a.Message)
	}
	return nil
}

// change patches target until ops has nothing more to change: first from what
// was observed, then once more from what is really there.
func (c *controller) change(ctx context.Context, target Object, ops func(Object) []op) error {
	err := c.patchOps(ctx, target, ops(target))
	if !isOutdated(err) {
		return ignoreGone(err)
	}
	live, err := c.owners.server.get(ctx, target.Kind, target.Namespace, target.Name)
	if err != nil || live.UID != target.UID {
		return ignoreGone(err)
	}
	return ignoreGone(c.patchOps(ctx, live, ops(live)))
}

func (c *controller) patchOps(ctx context.Context, target Object, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	isSame := op{Op: "test", Path: "/metadata/uid", Value: string(target.UID)}
	return c.owners.server.patch(ctx, target, slices.Insert(ops, 0, isSame))
}

// isOutdated: a failed test of a JSON patch comes as 422 Invalid.
func isOutdated(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsConflict(err) }

// ignoreGone: what is gone needs nothing. The watch will tell whom it concerns.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || errors.Is(err, errNotServed) {
		return nil
	}
	return err
}

func wrap(what string, o Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, o, err)
}

// dropOwners removes from the end, so that earlier indexes keep their meaning.
func dropOwners(o Object, gone []metav1.OwnerReference) []op {
	var ops []op
	for i, ref := range slices.Backward(o.Owners) {
		if slices.ContainsFunc(gone, func(g metav1.OwnerReference) bool { return isSameOwner(g, ref) }) {
			at := "/metadata/ownerReferences/" + strconv.Itoa(i)
			ops = append(ops, op{Op: "test", Path: at + "/uid", Value: string(ref.UID)},
				op{Op: "test", Path: at + "/name", Value: ref.Name}, op{Op: "remove", Path: at})
		}
	}
	return ops
}

func isSameOwner(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion
}

func unblock(o Object, owner types.UID) []op {
	var ops []op
	for i, ref := range o.Owners {
		if ref.UID == owner && isBlocking(ref) {
			at := "/metadata/ownerReferences/" + strconv.Itoa(i)
			ops = append(ops, op{Op: "test", Path: at + "/uid", Value: string(ref.UID)},
				op{Op: "replace", Path: at + "/blockOwnerDeletion", Value: false})
		}
	}
	return ops
}

func release(o Object, finalizer string) []op {
	i := slices.Index(o.Finalizers, finalizer)
	if i < 0 {
		return nil
	}
	at := "/metadata/finalizers/" + strconv.Itoa(i)
	return []op{{Op: "test", Path: at, Value: finalizer}, {Op: "remove", Path: at}}
}

// metadataServer is the real API, through the metadata client.
type metadataServer struct{ client metadata.Interface }

func (s metadataServer) of(kind Kind, namespace string) metadata.ResourceInterface {
	if !kind.Namespaced || namespace == "" {
		return s.client.Resource(kind.Resource)
	}
	return s.client.Resource(kind.Resource).Namespace(namespace)
}

func (s metadataServer) get(ctx context.Context, kind Kind, namespace, name string) (Object, error) {
	obj, err := s.of(kind, namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Object{}, tellPathFromObject(err)
	}
	return objectOf(kind, obj), nil
}

func (s metadataServer) list(ctx context.Context, kind Kind, namespace string) ([]Object, error) {
	found, err := s.of(kind, namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, tellPathFromObject(err)
	}
	all := make([]Object, 0, len(found.Items))
	for i := range found.Items {
		all = append(all, objectOf(kind, &found.Items[i]))
	}
	return all, nil
}

func (s metadataServer) delete(ctx context.Context, target Object, opts metav1.DeleteOptions) error {
	return tellPathFromObject(s.of(target.Kind, target.Namespace).Delete(ctx, target.Name, opts))
}

func (s metadataServer) patch(ctx context.Context, target Object, ops []op) error {
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	_, err = s.of(target.Kind, target.Namespace).Patch(ctx, target.Name, types.JSONPatchType, body, metav1.PatchOptions{})
	return tellPathFromObject(err)
}

// tellPathFromObject turns the 404 of an unknown path into errNotServed. A real
// answer about an object is a Status of the API; for any other body client-go
// makes one up and says so in its causes.
func tellPathFromObject(err error) error {
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return fmt.Errorf("%w: %w", errNotServed, err)
	}
	return err
}

func objectOf(kind Kind, m *metav1.PartialObjectMetadata) Object {
	return Object{
		Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		Owners: m.OwnerReferences, Finalizers: m.Finalizers, Deleting: m.DeletionTimestamp != nil,
	}
}

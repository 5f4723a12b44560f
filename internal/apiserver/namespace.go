package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerrors "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// namespaceREST deletes in two steps: the first DELETE marks the namespace as
// terminating, the namespace loop empties it and takes its finalizer from
// spec.finalizers, and only then is it gone. Unlike other kinds it has no
// deletion of a collection.
type namespaceREST struct {
	resource *resource
	// deleting is told of every namespace that begins to terminate.
	deleting func(name string)
}

// keepUntilEmptied lets no update, of the status neither, remove a namespace that
// the loop has not finalized.
func keepUntilEmptied(r *resource) {
	r.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, obj, existing runtime.Object) bool {
		return len(obj.(*core.Namespace).Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
	}
}

func (r *namespaceREST) NamespaceScoped() bool                  { return false }
func (r *namespaceREST) GetSingularName() string                { return r.resource.GetSingularName() }
func (r *namespaceREST) ShortNames() []string                   { return r.resource.ShortNames() }
func (r *namespaceREST) New() runtime.Object                    { return r.resource.New() }
func (r *namespaceREST) NewList() runtime.Object                { return r.resource.NewList() }
func (r *namespaceREST) Destroy()                               { r.resource.Destroy() }
func (r *namespaceREST) StorageVersion() runtime.GroupVersioner { return r.resource.StorageVersion() }

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *namespaceREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.resource.GetResetFields()
}

func (r *namespaceREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.resource.Get(ctx, name, options)
}

func (r *namespaceREST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return r.resource.List(ctx, options)
}

func (r *namespaceREST) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	return r.resource.Watch(ctx, options)
}

func (r *namespaceREST) Create(ctx context.Context, obj runtime.Object, validation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return r.resource.Create(ctx, obj, validation, options)
}

func (r *namespaceREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.resource.Update(ctx, name, objInfo, createValidation, updateValidation, forceAllowCreate, options)
}

func (r *namespaceREST) ConvertToTable(ctx context.Context, obj runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return r.resource.ConvertToTable(ctx, obj, options)
}

// Delete implements rest.GracefulDeleter.
func (r *namespaceREST) Delete(ctx context.Context, name string, validation rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	found, err := r.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	n := found.(*core.Namespace)
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if err := namespacePreconditions(n, options); err != nil {
		return nil, false, err
	}
	switch {
	case n.DeletionTimestamp.IsZero():
		marked, err := r.terminate(ctx, name, validation, options)
		return marked, false, err
	case len(n.Spec.Finalizers) > 0:
		return n, false, nil // the loop is at it
	}
	return r.resource.Delete(ctx, name, validation, options)
}

// namespacePreconditions makes sure that what is deleted is what was looked at.
func namespacePreconditions(n *core.Namespace, options *metav1.DeleteOptions) error {
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	wanted := options.Preconditions
	if wanted.UID == nil {
		wanted.UID = &n.UID
	}
	if *wanted.UID != n.UID {
		return apierrors.NewConflict(core.Resource("namespaces"), n.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *wanted.UID, n.UID))
	}
	if wanted.ResourceVersion != nil && *wanted.ResourceVersion != n.ResourceVersion {
		return apierrors.NewConflict(core.Resource("namespaces"), n.Name,
			fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *wanted.ResourceVersion, n.ResourceVersion))
	}
	return nil
}

// terminate sets the deletion timestamp and the phase.
func (r *namespaceREST) terminate(ctx context.Context, name string, validation rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := r.resource.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	dryRun := dryrun.IsDryRun(options.DryRun)
	mark := storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
		n := existing.(*core.Namespace)
		if validation != nil {
			if err := validation(ctx, n); err != nil {
				return nil, err
			}
		}
		if n.DeletionTimestamp.IsZero() {
			now := metav1.Now()
			n.DeletionTimestamp = &now
		}
		n.Status.Phase = core.NamespaceTerminating
		n.Finalizers = propagationFinalizers(n.Finalizers, options)
		return n, nil
	})
	if !dryRun {
		r.deleting(name)
	}
	out := r.New()
	preconditions := storage.Preconditions{UID: options.Preconditions.UID, ResourceVersion: options.Preconditions.ResourceVersion}
	err = r.resource.Storage.GuaranteedUpdate(ctx, key, out, false, &preconditions, mark, dryRun, nil)
	if err == nil {
		return out, nil
	}
	err = storageerrors.InterpretGetError(err, core.Resource("namespaces"), name)
	err = storageerrors.InterpretUpdateError(err, core.Resource("namespaces"), name)
	if status := (*apierrors.StatusError)(nil); !errors.As(err, &status) {
		err = apierrors.NewInternalError(err)
	}
	return nil, err
}

// propagationFinalizers adds or removes the garbage collector's finalizers as
// the options ask.
func propagationFinalizers(finalizers []string, options *metav1.DeleteOptions) []string {
	orphan, foreground := slices.Contains(finalizers, metav1.FinalizerOrphanDependents), slices.Contains(finalizers, metav1.FinalizerDeleteDependents)
	switch {
	case options.OrphanDependents != nil:
		orphan = *options.OrphanDependents
		foreground = !orphan
	case options.PropagationPolicy != nil:
		orphan = *options.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *options.PropagationPolicy == metav1.DeletePropagationForeground
	}
	kept := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents && !orphan || f == metav1.FinalizerDeleteDependents && !foreground
	})
	if orphan && !slices.Contains(kept, metav1.FinalizerOrphanDependents) {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground && !slices.Contains(kept, metav1.FinalizerDeleteDependents) {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	return kept
}

// finalizeREST is the subresource through which spec.finalizers are changed. It
// has no GET.
type finalizeREST struct{ inner resettingSubresource }

func (r *finalizeREST) New() runtime.Object { return r.inner.New() }

// Destroy leaves the storage to the resource.
func (r *finalizeREST) Destroy() {}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *finalizeREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.inner.GetResetFields()
}

func (r *finalizeREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.inner.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
}

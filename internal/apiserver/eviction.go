package apiserver

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/utils/ptr"
)

// evictionREST deletes a Pod after noting why in its conditions. There are no
// disruption budgets yet that could refuse it.
type evictionREST struct {
	pods   *resource
	status *genericregistry.Store
}

var evictionKind = schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}

// GroupVersionKind says in discovery that the object is of another group.
func (r *evictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return evictionKind
}

// AcceptsGroupVersion lets evictions of both versions in.
func (r *evictionREST) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv.Group == "policy" && (gv.Version == "v1" || gv.Version == "v1beta1")
}

func (r *evictionREST) New() runtime.Object { return &policy.Eviction{} }

// Destroy leaves the storage to the Pods.
func (r *evictionREST) Destroy() {}

// Create implements rest.NamedCreater.
func (r *evictionREST) Create(ctx context.Context, name string, obj runtime.Object, admit rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	eviction, ok := obj.(*policy.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if name != eviction.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	deletion, err := evictionOptions(eviction, options)
	if err != nil {
		return nil, err
	}
	if admit != nil {
		if err := admit(ctx, eviction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if _, err := r.pods.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if !dryrun.IsDryRun(deletion.DryRun) {
		if err := r.markDisrupted(ctx, name, deletion); err != nil {
			return nil, err
		}
	}
	if _, _, err := r.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, deletion); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// evictionOptions are the options of the deletion; dry run may be asked for in
// the request or in the object, but not differently.
func evictionOptions(eviction *policy.Eviction, options *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	if eviction.DeleteOptions == nil {
		return &metav1.DeleteOptions{DryRun: options.DryRun}, nil
	}
	deletion := eviction.DeleteOptions.DeepCopy()
	if ptr.Deref(deletion.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		return nil, apierrors.NewInvalid(evictionKind.GroupKind(), eviction.Name, field.ErrorList{field.Invalid(
			field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true,
			"can not be set for pod eviction, try after removing the option")})
	}
	switch {
	case len(deletion.DryRun) == 0:
		deletion.DryRun = options.DryRun
	case len(options.DryRun) > 0 && !slices.Equal(options.DryRun, deletion.DryRun):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Non-matching dry-run options in request and content: %v and %v", options.DryRun, deletion.DryRun))
	}
	return deletion, nil
}

// markDisrupted sets the condition, and moves a resourceVersion that the
// deletion insists on along with it.
func (r *evictionREST) markDisrupted(ctx context.Context, name string, deletion *metav1.DeleteOptions) error {
	mark := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		p := old.(*core.Pod).DeepCopy()
		if err := evictionPreconditions(p, deletion.Preconditions); err != nil {
			return nil, err
		}
		pod.UpdatePodCondition(&p.Status, &core.PodCondition{
			Type: core.DisruptionTarget, Status: core.ConditionTrue,
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		})
		return p, nil
	}
	updated, _, err := r.status.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, mark),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if deletion.Preconditions != nil && deletion.Preconditions.ResourceVersion != nil {
		deletion.Preconditions.ResourceVersion = &updated.(*core.Pod).ResourceVersion
	}
	return nil
}

func evictionPreconditions(p *core.Pod, wanted *metav1.Preconditions) error {
	if wanted == nil {
		return nil
	}
	kind := schema.GroupResource{Resource: "Pod"}
	if uid := ptr.Deref(wanted.UID, ""); uid != "" && uid != p.UID {
		return apierrors.NewConflict(kind, p.Name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", uid, p.UID))
	}
	if version := ptr.Deref(wanted.ResourceVersion, ""); version != "" && version != p.ResourceVersion {
		return apierrors.NewConflict(kind, p.Name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", version, p.ResourceVersion))
	}
	return nil
}

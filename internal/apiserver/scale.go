package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// scalable is the part of an object that its scale shows.
type scalable struct {
	meta     *metav1.ObjectMeta
	replicas *int32 // spec.replicas
	observed int32  // status.replicas
	selector *metav1.LabelSelector
}

func scalableOf(obj runtime.Object) scalable {
	switch o := obj.(type) {
	case *apps.Deployment:
		return scalable{&o.ObjectMeta, &o.Spec.Replicas, o.Status.Replicas, o.Spec.Selector}
	case *apps.ReplicaSet:
		return scalable{&o.ObjectMeta, &o.Spec.Replicas, o.Status.Replicas, o.Spec.Selector}
	}
	panic(fmt.Sprintf("%T has no scale", obj))
}

func scaleOf(obj runtime.Object) (*autoscaling.Scale, error) {
	s := scalableOf(obj)
	selector, err := metav1.LabelSelectorAsSelector(s.selector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &autoscaling.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.meta.Name, Namespace: s.meta.Namespace, UID: s.meta.UID,
			ResourceVersion: s.meta.ResourceVersion, CreationTimestamp: s.meta.CreationTimestamp,
		},
		Spec:   autoscaling.ScaleSpec{Replicas: *s.replicas},
		Status: autoscaling.ScaleStatus{Replicas: s.observed, Selector: selector.String()},
	}, nil
}

// scaleREST is the subresource scale: a view on spec.replicas.
type scaleREST struct {
	resource *resource
}

// GroupVersionKind says that the view has a kind of its own group.
func (r *scaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
}

func (r *scaleREST) New() runtime.Object { return &autoscaling.Scale{} }

// Destroy leaves the storage to the resource.
func (r *scaleREST) Destroy() {}

func (r *scaleREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.resource.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return scaleOf(obj)
}

func (r *scaleREST) ConvertToTable(ctx context.Context, obj runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return r.resource.ConvertToTable(ctx, obj, options)
}

func (r *scaleREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, _, err := r.resource.Update(ctx, name, &scaleChange{rest: r, name: name, inner: objInfo},
		func(ctx context.Context, obj runtime.Object) error {
			scale, err := scaleOf(obj)
			if err != nil {
				return err
			}
			return createValidation(ctx, scale)
		},
		func(ctx context.Context, obj, old runtime.Object) error {
			scale, err := scaleOf(obj)
			if err != nil {
				return err
			}
			oldScale, err := scaleOf(old)
			if err != nil {
				return err
			}
			return updateValidation(ctx, scale, oldScale)
		}, false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := scaleOf(obj)
	return scale, false, err
}

// scaleChange makes an update of a scale into one of the object behind it, and
// carries the ownership of the field across both ways.
type scaleChange struct {
	rest  *scaleREST
	name  string
	inner rest.UpdatedObjectInfo
}

func (c *scaleChange) Preconditions() *metav1.Preconditions { return c.inner.Preconditions() }

func (c *scaleChange) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	k := c.rest.resource.kind
	subject := schema.GroupResource{Group: k.group, Resource: k.plural + "/scale"}
	obj := old.DeepCopyObject()
	target := scalableOf(obj)
	if target.meta.ResourceVersion == "" {
		return nil, apierrors.NewNotFound(subject, c.name)
	}
	owners := managedfields.NewScaleHandler(target.meta.ManagedFields, k.groupVersion(),
		managedfields.ResourcePathMappings{k.groupVersion().String(): fieldpath.MakePathOrDie("spec", "replicas")})
	oldScale, err := scaleOf(obj)
	if err != nil {
		return nil, err
	}
	if oldScale.ManagedFields, err = owners.ToSubresource(); err != nil {
		return nil, err
	}
	updated, err := c.inner.UpdatedObject(ctx, oldScale)
	if err != nil {
		return nil, err
	}
	scale, ok := updated.(*autoscaling.Scale)
	if !ok || scale == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", updated))
	}
	if errs := autoscalingvalidation.ValidateScaleUpdate(ctx, scale, oldScale, legacyscheme.Scheme, c.rest); len(errs) > 0 {
		return nil, apierrors.NewInvalid(autoscaling.Kind("Scale"), c.name, errs)
	}
	if scale.UID != "" && scale.UID != target.meta.UID {
		return nil, apierrors.NewConflict(subject, c.name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, target.meta.UID))
	}
	*target.replicas = scale.Spec.Replicas
	target.meta.ResourceVersion = scale.ResourceVersion
	target.meta.ManagedFields, err = owners.ToParent(scale.ManagedFields)
	return obj, err
}

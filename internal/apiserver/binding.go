package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerrors "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
)

// bindingREST assigns a Pod to a node: node name, scheduled condition, and the
// binding's annotations and labels, in one write.
type bindingREST struct {
	pods *resource
}

func (r *bindingREST) NamespaceScoped() bool { return true }
func (r *bindingREST) New() runtime.Object   { return &core.Binding{} }

// Destroy leaves the storage to the Pods.
func (r *bindingREST) Destroy() {}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps UID and
// resourceVersion of the request: they are preconditions.
func (r *bindingREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create implements rest.NamedCreater.
func (r *bindingREST) Create(ctx context.Context, name string, obj runtime.Object, admit rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*core.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", obj))
	}
	if name != binding.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validation.ValidatePodBinding(binding); len(errs) != 0 {
		return nil, errs.ToAggregate()
	}
	if admit != nil {
		if err := admit(ctx, binding.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.assign(ctx, binding, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (r *bindingREST) assign(ctx context.Context, binding *core.Binding, dryRun bool) error {
	key, err := r.pods.KeyFunc(ctx, binding.Name)
	if err != nil {
		return err
	}
	var preconditions *storage.Preconditions
	if binding.UID != "" || binding.ResourceVersion != "" {
		preconditions = &storage.Preconditions{}
		if binding.UID != "" {
			preconditions.UID = &binding.UID
		}
		if binding.ResourceVersion != "" {
			preconditions.ResourceVersion = &binding.ResourceVersion
		}
	}
	err = r.pods.Storage.GuaranteedUpdate(ctx, key, &core.Pod{}, false, preconditions,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return bind(obj.(*core.Pod), binding) }), dryRun, nil)
	if err == nil {
		return nil
	}
	err = storageerrors.InterpretGetError(err, core.Resource("pods"), binding.Name)
	err = storageerrors.InterpretUpdateError(err, core.Resource("pods"), binding.Name)
	if status := (*apierrors.StatusError)(nil); !errors.As(err, &status) {
		err = apierrors.NewConflict(core.Resource("pods/binding"), binding.Name, err)
	}
	return err
}

// bind says why a Pod cannot be bound, or binds it.
func bind(p *core.Pod, binding *core.Binding) (runtime.Object, error) {
	switch {
	case p.DeletionTimestamp != nil:
		return nil, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		return nil, fmt.Errorf("pod %v is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) != 0:
		return nil, fmt.Errorf("pod %v has non-empty .spec.schedulingGates", p.Name)
	}
	p.Spec.NodeName = binding.Target.Name
	if enabled(features.ClearingNominatedNodeNameAfterBinding) {
		p.Status.NominatedNodeName = ""
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, binding.Annotations)
	pod.DropInitContainerAnnotations(p.Annotations)
	if enabled(features.PodTopologyLabelsAdmission) && len(binding.Labels) > 0 {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		maps.Copy(p.Labels, binding.Labels)
	}
	pod.UpdatePodCondition(&p.Status, &core.PodCondition{Type: core.PodScheduled, Status: core.ConditionTrue})
	return p, nil
}

// legacyBindingREST is the resource "bindings", which takes the Pod's name from
// the object.
type legacyBindingREST struct{ inner *bindingREST }

func (r *legacyBindingREST) NamespaceScoped() bool   { return true }
func (r *legacyBindingREST) New() runtime.Object     { return &core.Binding{} }
func (r *legacyBindingREST) GetSingularName() string { return "binding" }

// Destroy leaves the storage to the Pods.
func (r *legacyBindingREST) Destroy() {}

// Create implements rest.Creater.
func (r *legacyBindingREST) Create(ctx context.Context, obj runtime.Object, admit rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	return r.inner.Create(ctx, object.GetName(), obj, admit, options)
}

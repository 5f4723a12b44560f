package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// newPodFields is the managed fields' keeper of the Pods or of one subresource of them, as
// the handlers of k8s.io/apiserver have one.
func newPodFields(converter managedfields.TypeConverter, subresource string, resets rest.ResetFieldsStrategy) (*managedfields.FieldManager, error) {
	scheme := legacyscheme.Scheme
	return managedfields.NewDefaultFieldManager(converter, runtime.UnsafeObjectConvertor(scheme), scheme, scheme, podKind, core.SchemeGroupVersion,
		subresource, fieldpath.NewExcludeFilterSetMap(resets.GetResetFields()))
}

// manageFields takes the definitions of the core group.
func (p *podStorage) manageFields(definitions map[string]*spec.Schema) error {
	types, err := newPodTypes(definitions)
	if err != nil {
		return err
	}
	if p.fields, err = newPodFields(types, "", p.pods); err != nil {
		return err
	}
	ofStatus := *types
	ofStatus.withoutSpec = true
	p.statusFields, err = newPodFields(&ofStatus, "status", p.status)
	return err
}

// podTypes knows the types of all parts of a Pod. It does not check first that a Pod has
// them: it is a Go struct, and what compares it with another one checks again.
type podTypes struct {
	managedfields.TypeConverter
	schema *schema.Schema
	pod    schema.TypeRef
	// withoutSpec leaves out, as equal, the largest part of what is compared. The status
	// resets the spec: nobody comes to own anything in it.
	withoutSpec bool
}

func newPodTypes(definitions map[string]*spec.Schema) (*podTypes, error) {
	converter, err := managedfields.NewTypeConverter(definitions, false)
	if err != nil {
		return nil, err
	}
	empty := &corev1.Pod{}
	empty.SetGroupVersionKind(podKind)
	known, err := converter.ObjectToTyped(empty)
	if err != nil {
		return nil, fmt.Errorf("apiserver: the type of Pods: %w", err)
	}
	return &podTypes{TypeConverter: converter, schema: known.Schema(), pod: known.TypeRef()}, nil
}

// ObjectToTyped implements managedfields.TypeConverter.
func (t *podTypes) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return t.TypeConverter.ObjectToTyped(obj, options...)
	}
	if t.withoutSpec {
		pod = &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: pod.ObjectMeta, Status: pod.Status}
	}
	reflected, err := value.NewValueReflect(pod)
	if err != nil {
		return nil, err
	}
	return typed.AsTypedUnvalidated(reflected, t.schema, t.pod), nil
}

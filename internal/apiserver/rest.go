package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// tables turns objects into the columns that kubectl prints.
var tables = printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}

// resource is the REST storage of a row of the table.
type resource struct {
	*genericregistry.Store
	kind *kind
}

func newResource(k *kind, b *backend) (*resource, error) {
	s := newStrategy(k, k.rules)
	store := &genericregistry.Store{
		NewFunc:                   k.newObject,
		NewListFunc:               k.newList,
		PredicateFunc:             k.predicate,
		DefaultQualifiedResource:  k.resource(),
		SingularQualifiedResource: k.groupVersion().WithResource(k.singular).GroupResource(),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		ReturnDeletedObject:       k.returnsDeleted,
		TableConvertor:            tables,
	}
	if k.ttl > 0 {
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return k.ttl, nil }
	}
	options := &generic.StoreOptions{RESTOptions: restOptions{backend: b, kind: k}, AttrFunc: k.attributes}
	if k.indexed != "" {
		value := func(obj runtime.Object) string { return k.fields(obj)[k.indexed] }
		options.TriggerFunc = storage.IndexerFuncs{k.indexed: value}
		options.Indexers = &cache.Indexers{storage.FieldIndex(k.indexed): func(obj any) ([]string, error) {
			object, ok := obj.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("%T is not an object", obj)
			}
			return []string{value(object)}, nil
		}}
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return nil, err
	}
	return &resource{Store: store, kind: k}, nil
}

// ShortNames implements rest.ShortNamesProvider.
func (r *resource) ShortNames() []string { return r.kind.short }

// Categories implements rest.CategoriesProvider.
func (r *resource) Categories() []string { return r.kind.categories }

// lookup reads an object of this kind while a request for another one is served:
// errors name this kind, not the request's. A cluster-wide kind is found whatever
// the request's namespace. With version "0" the watch cache answers.
func (r *resource) lookup(ctx context.Context, name, version string) (runtime.Object, error) {
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: "get", APIGroup: r.kind.group, APIVersion: r.kind.version, Resource: r.kind.plural, Name: name,
	})
	if !r.kind.namespaced {
		ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	}
	return r.Get(ctx, name, &metav1.GetOptions{ResourceVersion: version})
}

// with is the same storage behind other rules, for a subresource that changes an
// object but takes nothing new for it.
func (r *resource) with(rules rules) *genericregistry.Store {
	store := *r.Store
	s := newStrategy(r.kind, rules)
	store.UpdateStrategy, store.ResetFieldsStrategy = s, s
	store.BeginUpdate = nil
	return &store
}

func (k *kind) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{}
	if k.fields != nil {
		set = k.fields(obj)
	}
	set["metadata.name"] = object.GetName()
	if k.namespaced {
		set["metadata.namespace"] = object.GetNamespace()
	}
	return object.GetLabels(), set, nil
}

func (k *kind) predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	p := storage.SelectionPredicate{Label: label, Field: field, GetAttrs: k.attributes}
	if k.indexed != "" {
		p.IndexFields = []string{k.indexed}
	}
	return p
}

// subresource reads and updates the whole object under rules of its own, as
// status does. It never creates.
type subresource struct {
	store *genericregistry.Store
}

func (r *subresource) New() runtime.Object { return r.store.New() }

// Destroy leaves the storage to the resource.
func (r *subresource) Destroy() {}

func (r *subresource) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

func (r *subresource) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
}

func (r *subresource) ConvertToTable(ctx context.Context, obj runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}

// resettingSubresource says which fields a write through it leaves alone.
type resettingSubresource struct{ subresource }

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *resettingSubresource) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

package apiserver

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// rules is what one endpoint (a resource, or a subresource that writes to it)
// does to an object before it is stored. A nil function does nothing.
type rules struct {
	// resets are the fields that a write through this endpoint puts back to what
	// they were, as dotted paths. Server-side apply does not own them.
	resets []string

	createOnUpdate bool // PUT of what does not exist creates it
	needsVersion   bool // an update must carry a resourceVersion
	unsupportedGC  bool // never gets finalizers of the garbage collector

	prepareCreate  func(ctx context.Context, obj runtime.Object)
	prepareUpdate  func(ctx context.Context, obj, old runtime.Object)
	validate       func(ctx context.Context, obj runtime.Object) field.ErrorList
	validateUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	warnCreate     func(ctx context.Context, obj runtime.Object) []string
	warnUpdate     func(ctx context.Context, obj, old runtime.Object) []string
	canonicalize   func(obj runtime.Object)
	graceful       func(obj runtime.Object, options *metav1.DeleteOptions) bool
	declarative    func() map[string]bool // options of the declarative validation
}

// strategy makes rules into the interfaces that the generic registry calls.
type strategy struct {
	rest.DeclarativeValidation
	names.NameGenerator
	rules
	namespaced bool
	apiVersion fieldpath.APIVersion
}

func newStrategy(k *kind, r rules) *strategy {
	return &strategy{
		DeclarativeValidation: rest.DeclarativeValidation{Scheme: legacyscheme.Scheme},
		NameGenerator:         names.SimpleNameGenerator,
		rules:                 r,
		namespaced:            k.namespaced,
		apiVersion:            fieldpath.APIVersion(k.groupVersion().String()),
	}
}

func (s *strategy) NamespaceScoped() bool                         { return s.namespaced }
func (s *strategy) AllowCreateOnUpdate(context.Context) bool      { return s.createOnUpdate }
func (s *strategy) AllowUnconditionalUpdate(context.Context) bool { return !s.needsVersion }

func (s *strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.unsupportedGC {
		return rest.Unsupported
	}
	return rest.DeleteDependents
}

func (s *strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.prepareCreate != nil {
		s.prepareCreate(ctx, obj)
	}
}

func (s *strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.prepareUpdate != nil {
		s.prepareUpdate(ctx, obj, old)
	}
}

func (s *strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	if s.validate == nil {
		return nil
	}
	return s.validate(ctx, obj)
}

func (s *strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.validateUpdate == nil {
		return nil
	}
	return s.validateUpdate(ctx, obj, old)
}

func (s *strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.warnCreate == nil {
		return nil
	}
	return s.warnCreate(ctx, obj)
}

func (s *strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.warnUpdate == nil {
		return nil
	}
	return s.warnUpdate(ctx, obj, old)
}

func (s *strategy) Canonicalize(obj runtime.Object) {
	if s.canonicalize != nil {
		s.canonicalize(obj)
	}
}

func (s *strategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	return s.graceful != nil && options != nil && s.graceful(obj, options)
}

func (s *strategy) DeclarativeValidationConfig(context.Context, runtime.Object, runtime.Object) rest.DeclarativeValidationConfig {
	if s.declarative == nil {
		return rest.DeclarativeValidationConfig{}
	}
	return rest.DeclarativeValidationConfig{Options: s.declarative()}
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s *strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if len(s.resets) == 0 {
		return nil
	}
	set := fieldpath.NewSet()
	for _, path := range s.resets {
		var elements []any
		for name := range strings.SplitSeq(path, ".") {
			elements = append(elements, name)
		}
		set.Insert(fieldpath.MakePathOrDie(elements...))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{s.apiVersion: set}
}

// The functions below adapt typed rules to the untyped ones of the table.

func onObject[T runtime.Object](f func(T)) func(context.Context, runtime.Object) {
	return func(_ context.Context, obj runtime.Object) { f(obj.(T)) }
}

func onChange[T runtime.Object](f func(obj, old T)) func(context.Context, runtime.Object, runtime.Object) {
	return func(_ context.Context, obj, old runtime.Object) { f(obj.(T), old.(T)) }
}

func checkObject[T runtime.Object](f func(T) field.ErrorList) func(context.Context, runtime.Object) field.ErrorList {
	return func(_ context.Context, obj runtime.Object) field.ErrorList { return f(obj.(T)) }
}

func checkChange[T runtime.Object](f func(obj, old T) field.ErrorList) func(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return func(_ context.Context, obj, old runtime.Object) field.ErrorList { return f(obj.(T), old.(T)) }
}

func warnObject[T runtime.Object](f func(context.Context, T) []string) func(context.Context, runtime.Object) []string {
	return func(ctx context.Context, obj runtime.Object) []string { return f(ctx, obj.(T)) }
}

func warnChange[T runtime.Object](f func(ctx context.Context, obj, old T) []string) func(context.Context, runtime.Object, runtime.Object) []string {
	return func(ctx context.Context, obj, old runtime.Object) []string { return f(ctx, obj.(T), old.(T)) }
}

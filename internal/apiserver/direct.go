package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// ListWatch reads a kind (its plural) from the watch cache for informers of this
// process. What they get is what a client would, in the served version, but it was
// not encoded and decoded on its way, which for a watch costs more than all else.
// The objects are the caller's own. selector may be nil.
//
// It is for mend's own loops and agents, which may read everything.
func (s *Server) ListWatch(plural string, selector fields.Selector) cache.ListerWatcher {
	d := &direct{server: s, resource: s.resources[plural], selector: selector}
	if d.resource == nil {
		panic("apiserver: nothing serves " + plural) // the caller names a row of the table
	}
	return &cache.ListWatch{ListWithContextFunc: d.list, WatchFuncWithContext: d.watch}
}

type direct struct {
	server   *Server
	resource *resource
	selector fields.Selector
}

func (d *direct) options(given metav1.ListOptions) (*metainternal.ListOptions, error) {
	var options metainternal.ListOptions
	if err := metainternal.Convert_v1_ListOptions_To_internalversion_ListOptions(&given, &options, nil); err != nil {
		return nil, err
	}
	if d.selector != nil {
		options.FieldSelector = d.selector
	}
	return &options, nil
}

// context ends with the caller's and with the server.
func (d *direct) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll))
	stop := context.AfterFunc(d.server.base, cancel)
	return ctx, func() { stop(); cancel() }
}

func (d *direct) list(ctx context.Context, given metav1.ListOptions) (runtime.Object, error) {
	options, err := d.options(given)
	if err != nil {
		return nil, err
	}
	ctx, cancel := d.context(ctx)
	defer cancel()
	found, err := d.resource.List(ctx, options)
	if err != nil {
		return nil, err
	}
	return d.resource.served(found.DeepCopyObject())
}

func (d *direct) watch(ctx context.Context, given metav1.ListOptions) (watch.Interface, error) {
	options, err := d.options(given)
	if err != nil {
		return nil, err
	}
	ctx, cancel := d.context(ctx)
	watching, err := d.resource.watch(ctx, options, d.convert)
	if err != nil {
		cancel()
		return nil, err
	}
	return &directWatch{Interface: watching, cancel: cancel}, nil
}

// convert turns what the watch cache shares among all watchers into the caller's
// own. A failure ends the watch, as one of encoding would.
func (d *direct) convert(event watch.Event) watch.Event {
	if event.Type == watch.Error {
		return event
	}
	own := event.Object
	if shared, ok := own.(runtime.CacheableObject); ok {
		own = shared.GetObject() // a copy
	} else {
		own = own.DeepCopyObject()
	}
	converted, err := d.resource.served(own)
	if err != nil {
		status := metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
		return watch.Event{Type: watch.Error, Object: &status}
	}
	event.Object = converted
	return event
}

// served is own, an object or a list, in the served version. It gives away what it is
// given: the result shares its memory.
func (r *resource) served(own runtime.Object) (runtime.Object, error) {
	converted, err := legacyscheme.Scheme.UnsafeConvertToVersion(own, r.kind.groupVersion())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.kind.plural, err)
	}
	// Typed clients give objects without apiVersion and kind.
	converted.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if meta.IsListType(converted) {
		err = meta.EachListItem(converted, func(item runtime.Object) error {
			item.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			return nil
		})
	}
	return converted, err
}

type directWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop implements watch.Interface.
func (w *directWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

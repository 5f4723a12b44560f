package mirror

import (
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
)

// observe returns what a plan for the Endpoints named by key needs.
func (c *controller) observe(key string) (Observed, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return Observed{}, err
	}
	var o Observed
	if o.Endpoints, err = c.endpoints.Endpoints(namespace).Get(name); apierrors.IsNotFound(err) {
		o.Endpoints, err = nil, nil
	}
	if err != nil {
		return o, err
	}
	if o.Service, err = c.services.Services(namespace).Get(name); apierrors.IsNotFound(err) {
		o.Service, err = nil, nil
	}
	if err != nil {
		return o, err
	}
	all, err := c.slices.EndpointSlices(namespace).List(labels.Set{
		discovery.LabelServiceName: name, discovery.LabelManagedBy: managedBy,
	}.AsSelectorPreValidated())
	for _, slice := range all {
		if slice.DeletionTimestamp == nil {
			o.Slices = append(o.Slices, slice)
		}
	}
	return o, err
}

// watch says which events wake which Endpoints.
func (c *controller) watch(env loop.Env, wake func(key string)) error {
	core := env.Informers.Core().V1()
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{core.Endpoints().Informer(), only(wake, func(e *v1.Endpoints) bool { return isForMirroring(e) })},
		{core.Services().Informer(), only(wake, func(s *v1.Service) bool { return s.Spec.Selector == nil })},
		{env.Informers.Discovery().V1().EndpointSlices().Informer(), sliceEvents(wake)},
	} {
		if _, err := watch.informer.AddEventHandler(watch.handler); err != nil {
			return fmt.Errorf("register event handlers: %w", err)
		}
	}
	return nil
}

// only wakes the key of an object that is of interest, or was.
func only[T any](wake func(key string), is func(T) bool) cache.ResourceEventHandler {
	see := func(objects ...any) {
		for _, obj := range objects {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			key, err := cache.MetaNamespaceKeyFunc(obj)
			if typed, ok := obj.(T); ok && err == nil && is(typed) {
				wake(key)
				return
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { see(obj) }, UpdateFunc: func(old, obj any) { see(old, obj) }, DeleteFunc: func(obj any) { see(obj) }}
}

// sliceEvents wakes the Endpoints of a slice that this loop keeps, or kept.
func sliceEvents(wake func(key string)) cache.ResourceEventHandler {
	see := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		slice, ok := obj.(*discovery.EndpointSlice)
		if ok && slice.Labels[discovery.LabelManagedBy] == managedBy && slice.Labels[discovery.LabelServiceName] != "" {
			wake(slice.Namespace + "/" + slice.Labels[discovery.LabelServiceName])
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(old, obj any) {
			see(obj)
			if before, ok := old.(*discovery.EndpointSlice); ok && !reflect.DeepEqual(before.Labels, obj.(*discovery.EndpointSlice).Labels) {
				see(old)
			}
		},
		DeleteFunc: see,
	}
}

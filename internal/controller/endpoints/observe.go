package endpoints

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"mend/internal/controller/endpoints/podservices"
	"mend/internal/loop"
)

// observe returns what a plan for the Service named by key needs.
func (c *controller) observe(key string) (Observed, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return Observed{}, err
	}
	var o Observed
	o.Endpoints, err = c.endpoints.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return o, err
	}
	if apierrors.IsNotFound(err) {
		o.Endpoints = nil
	}
	o.Service, err = c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		o.Service = nil
		c.times.DeleteService(namespace, name)
		return o, nil
	}
	if err != nil || len(o.Service.Spec.Selector) == 0 {
		return o, err
	}
	o.Pods, err = c.pods.Pods(namespace).List(labels.Set(o.Service.Spec.Selector).AsSelectorPreValidated())
	if err == nil {
		o.Since = c.times.ComputeEndpointLastChangeTriggerTime(namespace, o.Service, o.Pods)
	}
	return o, err
}

// batch is for how long changes are collected into one write: while Pods come and go,
// each write of all addresses is soon followed by the next.
const batch = 50 * time.Millisecond

// watch says which events wake which Service.
func (c *controller) watch(env loop.Env, l *loop.Loop) error {
	services, pods := env.Informers.Core().V1().Services().Informer(), env.Informers.Core().V1().Pods().Informer()
	if err := podservices.Index(services); err != nil {
		return err
	}
	soon := func(key string) { l.AddAt(key, env.Clock.Now().Add(batch)) }
	named := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			soon(key)
		}
	}
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{services, cache.ResourceEventHandlerFuncs{AddFunc: named, UpdateFunc: func(_, obj any) { named(obj) }, DeleteFunc: named}},
		{pods, podservices.Handler(services.GetIndexer(), soon)},
		{env.Informers.Core().V1().Endpoints().Informer(), cache.ResourceEventHandlerDetailedFuncs{
			// One that appears without a Service may be a client's, made a moment too soon.
			// One that was there before us has been forgotten.
			AddFunc: func(obj any, inFirstList bool) {
				if inFirstList && !isLock(obj) {
					named(obj)
				}
			},
			UpdateFunc: func(_, obj any) {
				if isManaged(obj) {
					named(obj)
				}
			},
			DeleteFunc: named,
		}},
	} {
		if _, err := watch.informer.AddEventHandler(watch.handler); err != nil {
			return fmt.Errorf("register event handlers: %w", err)
		}
	}
	return nil
}

// isLock says whether the object is where a client elects a leader, as old ones do: it
// never has a Service.
func isLock(obj any) bool {
	e, ok := obj.(*v1.Endpoints)
	if !ok {
		return false
	}
	_, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return lock
}

func isManaged(obj any) bool {
	e, ok := obj.(*v1.Endpoints)
	return ok && e.Labels[labelManagedBy] == managedBy
}

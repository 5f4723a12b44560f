package loadbalancer

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

// byPort indexes this loop's Services by port and protocol.
const byPort = "loadbalancer/port"

func portKeys(obj any) ([]string, error) {
	s, ok := obj.(*v1.Service)
	if !ok {
		return nil, fmt.Errorf("not a Service: %T", obj)
	}
	if !isOurs(s) {
		return nil, nil
	}
	var keys []string
	for _, p := range s.Spec.Ports {
		keys = append(keys, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	return keys, nil
}

// rivals are the other Services with a port in common with s.
func (c *controller) rivals(s *v1.Service) ([]*v1.Service, error) {
	keys, err := portKeys(s)
	if err != nil {
		return nil, err
	}
	var all []*v1.Service
	for _, key := range keys {
		found, err := c.indexer.ByIndex(byPort, key)
		if err != nil {
			return nil, err
		}
		for _, obj := range found {
			if other := obj.(*v1.Service); other.UID != s.UID && other.DeletionTimestamp == nil {
				all = append(all, other)
			}
		}
	}
	return all, nil
}

// observe returns what a plan for the Service named by key needs; false if there is none.
func (c *controller) observe(key string) (o Observed, ok bool, err error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return o, false, err
	}
	o.Service, err = c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return o, false, nil
	}
	if err != nil {
		return o, false, err
	}
	o.Reserved = c.reserved
	if o.Rivals, err = c.rivals(o.Service); err != nil {
		return o, false, err
	}
	if o.Nodes, err = c.nodes.List(labels.Everything()); err != nil {
		return o, false, err
	}
	o.Slices, err = c.slices.EndpointSlices(namespace).List(labels.Set{discovery.LabelServiceName: name}.AsSelectorPreValidated())
	return o, err == nil, err
}

// watch says which events wake which Services.
func (c *controller) watch(env loop.Env, wake func(key string)) error {
	core := env.Informers.Core().V1()
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{core.Services().Informer(), c.serviceEvents(wake)},
		{core.Nodes().Informer(), c.nodeEvents(wake)},
		{env.Informers.Discovery().V1().EndpointSlices().Informer(), c.sliceEvents(wake)},
	} {
		if _, err := watch.informer.AddEventHandler(watch.handler); err != nil {
			return fmt.Errorf("register event handlers: %w", err)
		}
	}
	return nil
}

// serviceEvents wakes a Service and those that want the same ports.
func (c *controller) serviceEvents(wake func(key string)) cache.ResourceEventHandler {
	see := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		s, ok := obj.(*v1.Service)
		if !ok || !isOurs(s) {
			return
		}
		wake(cache.MetaObjectToName(s).String())
		others, err := c.rivals(s)
		if err != nil {
			panic(fmt.Sprintf("Services are not indexed by port: %v", err))
		}
		for _, other := range others {
			wake(cache.MetaObjectToName(other).String())
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(old, obj any) { see(old); see(obj) }, DeleteFunc: see}
}

// nodeEvents wakes all of them when a node's addresses or readiness change.
func (c *controller) nodeEvents(wake func(key string)) cache.ResourceEventHandler {
	all := func() {
		for _, port := range c.indexer.ListIndexFuncValues(byPort) {
			found, err := c.indexer.IndexKeys(byPort, port)
			if err != nil {
				panic(fmt.Sprintf("Services are not indexed by port: %v", err))
			}
			for _, key := range found {
				wake(key)
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { all() },
		UpdateFunc: func(old, obj any) {
			before, node := old.(*v1.Node), obj.(*v1.Node)
			_, wasOut := before.Labels[excluded]
			_, isOut := node.Labels[excluded]
			if isReady(before) != isReady(node) || wasOut != isOut || !reflect.DeepEqual(before.Status.Addresses, node.Status.Addresses) {
				all()
			}
		},
		DeleteFunc: func(any) { all() },
	}
}

// sliceEvents wakes a Service whose addresses depend on where its endpoints are.
func (c *controller) sliceEvents(wake func(key string)) cache.ResourceEventHandler {
	see := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		slice, ok := obj.(*discovery.EndpointSlice)
		if !ok {
			return
		}
		s, err := c.services.Services(slice.Namespace).Get(slice.Labels[discovery.LabelServiceName])
		if err == nil && isOurs(s) && s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
			wake(cache.MetaObjectToName(s).String())
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }, DeleteFunc: see}
}

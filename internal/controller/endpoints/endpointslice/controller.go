package endpointslice

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	slicemetrics "k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"mend/internal/controller/endpoints/podservices"
	"mend/internal/loop"
	"mend/internal/view"
)

const (
	// managedBy is upstream's name: other clients know slices by it.
	managedBy = "endpointslice-controller.k8s.io"
	// mostEndpoints of one slice, as upstream's default has it.
	mostEndpoints = 100
	workers       = 5
)

// Declaration is the loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        "endpointslice",
		EventSource: "endpoint-slice-controller",
		Reads:       []string{"services", "pods", "nodes", "endpointslices"},
		Writes:      []string{"endpointslices:selector"},
		Build:       build,
	}
}

// controller is the loop's [loop.Reconciler]. Keys are Services.
type controller struct {
	services   corelisters.ServiceLister
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	slices     discoverylisters.EndpointSliceLister
	events     record.EventRecorder
	log        *slog.Logger
	reconciler *endpointslice.Reconciler
	tracker    *endpointsliceutil.EndpointSliceTracker
	times      *endpointsliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	writes     *view.Writes
	behind     keys
	wake       func(key string)
}

// keys is a set of keys for several goroutines.
type keys struct {
	mu  sync.Mutex
	set map[string]struct{}
}

func (k *keys) add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set[key] = struct{}{}
}

// take removes a key and says whether it was there.
func (k *keys) take(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, there := k.set[key]
	delete(k.set, key)
	return there
}

func build(env loop.Env) (*loop.Loop, error) {
	slicemetrics.RegisterMetrics()
	services, pods, nodes := env.Informers.Core().V1().Services(), env.Informers.Core().V1().Pods(), env.Informers.Core().V1().Nodes()
	slices := env.Informers.Discovery().V1().EndpointSlices()
	c := &controller{
		services: services.Lister(), pods: pods.Lister(), nodes: nodes.Lister(), slices: slices.Lister(),
		events: env.Events, log: env.Log.With("loop", "endpointslice"),
		tracker: endpointsliceutil.NewEndpointSliceTracker(), times: endpointsliceutil.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(), behind: keys{set: map[string]struct{}{}},
	}
	c.writes = view.NewWrites(map[string]cache.Store{resource: slices.Informer().GetStore()})
	client := noting{env.Client, c.writes, c.slices}
	c.reconciler = endpointslice.NewReconciler(client, c.nodes, mostEndpoints, c.tracker, c.topology, env.Events, managedBy,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	l := loop.New(loop.Options{Name: "endpointslice", Reconciler: c, Workers: workers, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	c.wake = l.Add
	if err := podservices.Index(services.Informer()); err != nil {
		return nil, err
	}
	for _, watch := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{services.Informer(), c.serviceEvents()},
		{pods.Informer(), podservices.Handler(services.Informer().GetIndexer(), l.Add)},
		{slices.Informer(), c.sliceEvents()},
		{nodes.Informer(), c.nodeEvents()},
	} {
		if _, err := watch.informer.AddEventHandler(watch.handler); err != nil {
			return nil, fmt.Errorf("register event handlers: %w", err)
		}
	}
	return l, nil
}

// Sync makes the slices of the Service named by key show its Pods.
func (c *controller) Sync(_ context.Context, key string) (time.Time, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return time.Time{}, err
	}
	service, err := c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.times.DeleteService(namespace, name)
		c.reconciler.DeleteService(namespace, name)
		c.tracker.DeleteService(namespace, name)
		c.writes.Forget(key)
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	if service.Spec.Type == v1.ServiceTypeExternalName || service.Spec.Selector == nil || service.DeletionTimestamp != nil {
		return time.Time{}, nil
	}
	return time.Time{}, c.reconcile(key, service)
}

func (c *controller) reconcile(key string, service *v1.Service) error {
	pods, err := c.pods.Pods(service.Namespace).List(labels.Set(service.Spec.Selector).AsSelectorPreValidated())
	if err != nil {
		return err
	}
	c.behind.add(key) // before the cache is read: an event in between must not be lost
	if !c.writes.CaughtUp(key) {
		return loop.ErrStale
	}
	have, err := c.ours(service)
	if err != nil {
		return err
	}
	c.behind.take(key)
	if c.tracker.StaleSlices(service, have) {
		// The view has all that was written, so what it lacks was deleted before it
		// showed, or given to another Service: waiting would never end.
		c.tracker.DeleteService(service.Namespace, service.Name)
	}
	since := c.times.ComputeEndpointLastChangeTriggerTime(service.Namespace, service, pods)
	err = c.reconciler.Reconcile(klog.Background(), service, pods, have, since)
	if apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
		return nil
	}
	if err != nil {
		c.events.Eventf(service, v1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", service.Namespace, service.Name, err)
		return err
	}
	if !c.writes.CaughtUp(key) {
		return loop.ErrStale // what is deleted before the view shows it is told by no event
	}
	return nil
}

// ours are the Service's slices that this loop keeps, but for those being deleted.
func (c *controller) ours(service *v1.Service) ([]*discovery.EndpointSlice, error) {
	all, err := c.slices.EndpointSlices(service.Namespace).List(labels.Set{
		discovery.LabelServiceName: service.Name, discovery.LabelManagedBy: managedBy,
	}.AsSelectorPreValidated())
	if err != nil {
		return nil, err
	}
	live := all[:0]
	for _, slice := range all {
		if slice.DeletionTimestamp == nil {
			live = append(live, slice)
		}
	}
	return live, nil
}

func (c *controller) serviceEvents() cache.ResourceEventHandler {
	wake := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			c.wake(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, obj any) { wake(obj) }, DeleteFunc: wake}
}

// sliceEvents wakes a Service when somebody else changed one of its slices, or when the
// slice comes in for which a sync waits.
func (c *controller) sliceEvents() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.sliceChanged(nil, obj.(*discovery.EndpointSlice)) },
		UpdateFunc: func(old, obj any) {
			c.sliceChanged(old.(*discovery.EndpointSlice), obj.(*discovery.EndpointSlice))
		},
		DeleteFunc: c.sliceDeleted,
	}
}

func (c *controller) sliceChanged(old, slice *discovery.EndpointSlice) {
	key, err := endpointslice.ServiceControllerKey(slice)
	moved := old != nil && (old.Labels[discovery.LabelServiceName] != slice.Labels[discovery.LabelServiceName] ||
		c.reconciler.ManagedByChanged(old, slice))
	if moved {
		if from, err := endpointslice.ServiceControllerKey(old); err == nil {
			c.wake(from)
		}
	}
	if err != nil {
		return // it belongs to no Service
	}
	foreign := c.reconciler.ManagedByController(slice) && c.tracker.ShouldSync(slice)
	if moved || foreign || c.behind.take(key) {
		c.wake(key)
	}
}

func (c *controller) sliceDeleted(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	slice, ok := obj.(*discovery.EndpointSlice)
	if !ok {
		return
	}
	key, err := endpointslice.ServiceControllerKey(slice)
	if err != nil {
		return
	}
	// One that this process did not write, such as all of those from before a restart,
	// it did not delete either.
	ours := c.reconciler.ManagedByController(slice)
	expected := ours && c.tracker.Has(slice) && c.tracker.HandleDeletion(slice)
	if ours && !expected || c.behind.take(key) {
		c.wake(key)
	}
}

// nodeEvents keeps the zones, by which hints are given.
func (c *controller) nodeEvents() cache.ResourceEventHandler {
	refresh := func() {
		nodes, err := c.nodes.List(labels.Everything())
		if err != nil {
			c.log.Error("cannot list nodes; topology hints stay as they are", "err", err)
			return
		}
		c.topology.SetNodes(klog.Background(), nodes)
		for _, key := range c.topology.GetOverloadedServices() {
			c.wake(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { refresh() },
		UpdateFunc: func(old, obj any) {
			before, node := old.(*v1.Node), obj.(*v1.Node)
			if isReady(before) != isReady(node) || before.Labels[v1.LabelTopologyZone] != node.Labels[v1.LabelTopologyZone] {
				refresh()
			}
		},
		DeleteFunc: func(any) { refresh() },
	}
}

func isReady(node *v1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			return condition.Status == v1.ConditionTrue
		}
	}
	return false
}

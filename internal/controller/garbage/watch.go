package garbage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// kindWatch is one kind being watched.
type kindWatch struct {
	kind *Kind
	stop context.CancelFunc
}

// rediscover reads the list of kinds and starts and ends watches so that each is
// watched. The watches run until ctx, the loop's own, ends.
func (c *controller) rediscover(ctx context.Context) (time.Time, error) {
	groups, lists, err := c.discovery.ServerGroupsAndResourcesWithContext(ctx)
	failed, isPartial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !isPartial || len(lists) == 0 {
		return time.Time{}, fmt.Errorf("discover served kinds: %w", err)
	}
	if isPartial {
		c.log.Info("some API groups did not answer; their kinds stay as they were", "groups", len(failed), "err", err)
	}
	found := newCatalog(groups, lists).withFailed(c.owners.getCatalog(), failed)
	c.owners.setCatalog(found)

	wanted := map[schema.GroupVersionResource]Kind{}
	for _, kind := range found.watched {
		wanted[kind.Resource] = kind
	}
	for _, resource := range slices.Collect(maps.Keys(c.watches)) {
		if w := c.watches[resource]; wanted[resource] != *w.kind {
			w.stop()
			delete(c.watches, resource)
			c.wake(c.graph.forget(w.kind))
			c.log.Info("kind is no longer served", "resource", resource.String())
		}
	}
	for _, kind := range found.watched {
		if _, running := c.watches[kind.Resource]; !running {
			c.startWatch(ctx, kind)
		}
	}
	now := c.clock.Now()
	c.wake(c.graph.settleIfComplete(now))
	return now.Add(rediscovery), nil
}

func (c *controller) startWatch(ctx context.Context, kind Kind) {
	ctx, stop := context.WithCancel(ctx)
	shared := c.graph.watch(kind, c.clock.Now())
	c.watches[kind.Resource] = &kindWatch{kind: shared, stop: stop}
	reflector := cache.NewReflectorWithOptions(
		listWatch(c.client, kind.Resource), &metav1.PartialObjectMetadata{}, &feed{controller: c, kind: shared},
		cache.ReflectorOptions{Name: Name + "/" + kind.Resource.GroupResource().String(), Clock: c.clock})
	go reflector.RunWithContext(ctx)
}

func listWatch(client metadata.Interface, resource schema.GroupVersionResource) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(resource).List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(resource).Watch(ctx, opts)
		},
	}, client)
}

// feed takes what a reflector delivers straight into the graph: there is no
// second copy of the objects in an informer's store.
type feed struct {
	controller *controller
	kind       *Kind
}

var _ cache.TransformingStore = &feed{}

// kindChanges are the objects whose change may change the list of kinds.
var kindChanges = map[schema.GroupResource]bool{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: true,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             true,
}

func (f *feed) Add(obj any) error {
	m, err := metadataOf(obj)
	if err != nil {
		return err
	}
	f.deliver(f.controller.graph.put(f.kind, m))
	return nil
}

func (f *feed) Update(obj any) error { return f.Add(obj) }

func (f *feed) Delete(obj any) error {
	m, err := metadataOf(obj)
	if err != nil {
		return err
	}
	f.deliver(f.controller.graph.remove(m.UID))
	return nil
}

func (f *feed) Replace(objs []any, _ string) error {
	all := make([]*metav1.PartialObjectMetadata, 0, len(objs))
	for _, obj := range objs {
		m, err := metadataOf(obj)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	f.deliver(f.controller.graph.replace(f.kind, all, f.controller.clock.Now()))
	return nil
}

func (f *feed) Resync() error { return nil }

// Transformer lightens the lists that the reflector holds while they arrive.
func (f *feed) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			m.ManagedFields, m.Annotations, m.Labels = nil, nil, nil
		}
		return obj, nil
	}
}

func (f *feed) deliver(w wakes) {
	f.controller.wake(w)
	if kindChanges[f.kind.Resource.GroupResource()] {
		f.controller.enqueueAt(discoveryKey, f.controller.clock.Now().Add(rediscoverySoon))
	}
}

func metadataOf(obj any) (*metav1.PartialObjectMetadata, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, fmt.Errorf("want object metadata, got %T", obj)
	}
	return m, nil
}

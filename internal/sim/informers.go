package sim

import (
	"fmt"
	"slices"
	"strconv"

	apps "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	informersapps "k8s.io/client-go/informers/apps"
	informerscoordination "k8s.io/client-go/informers/coordination"
	informerscore "k8s.io/client-go/informers/core"
	informersdiscovery "k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	informersnetworking "k8s.io/client-go/informers/networking"
	"k8s.io/client-go/tools/cache"
)

// stream is how far somebody has read the watch of one kind.
type stream struct {
	api    *api
	res    resource
	at     int // events of the kind's log read
	listed bool
	sink   sink
}

// sink takes what a watch shows.
type sink interface {
	replace(objs []object, version string)
	take(e event)
}

func (s *stream) isBehind() bool { return !s.listed || s.at < len(s.api.log[s.res]) }

// deliver hands over the next event, or the first list.
func (s *stream) deliver() {
	if !s.listed {
		s.relist()
		return
	}
	if s.at < len(s.api.log[s.res]) {
		s.at++
		s.sink.take(s.api.log[s.res][s.at-1])
	}
}

// repeat hands over the last event once more, unless its object has gone since.
func (s *stream) repeat() {
	if s.listed && s.at > 0 && s.at <= len(s.api.log[s.res]) && !s.api.log[s.res][s.at-1].gone {
		s.sink.take(s.api.log[s.res][s.at-1])
	}
}

// relist lets the watch break and start over: what happened meanwhile is only
// seen by its result.
func (s *stream) relist() {
	s.at, s.listed = len(s.api.log[s.res]), true
	s.sink.replace(s.api.all(s.res), strconv.Itoa(s.api.revs))
}

// made is what a loop has created.
type made struct {
	res resource
	obj object
}

// vanish lets somebody delete what a loop has just created, while the watch of its kind
// starts over: no event tells of either. The last time is once faults have stopped, since
// until then something else mostly wakes the loop.
func (l *life) vanish(all []made) {
	w := l.w
	for _, m := range all {
		if !w.faults && !w.lastFault || !w.profile.lag || !w.profile.isBusy() || !slices.Contains(vanishing, m.res) || w.rng.IntN(4) > 0 {
			continue
		}
		w.lastFault = false
		if now := w.api.objects[m.res][keyOf(m.obj)]; now == nil || now.GetUID() != m.obj.GetUID() {
			continue
		}
		w.note("user deletes %s %s, and its watch starts over", m.res, keyOf(m.obj))
		w.slicesKnown = false
		must(w.api.delete(m.res, keyOf(m.obj), metav1.DeleteOptions{}))
		for _, s := range l.streams {
			if s.sink == l.factory.of[m.res] {
				s.relist()
			}
		}
	}
}

var vanishing = []resource{endpointSlices, endpointsRes, serviceCIDRs, ipAddresses}

// informer is a shared informer that its stream feeds, in the caller's goroutine.
type informer struct {
	cache.SharedIndexInformer // what loops do not call
	indexer                   cache.Indexer
	handlers                  []cache.ResourceEventHandler
	started                   bool
}

func newInformer() *informer {
	return &informer{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
}

func (i *informer) GetStore() cache.Store                  { return i.indexer }
func (i *informer) GetIndexer() cache.Indexer              { return i.indexer }
func (i *informer) AddIndexers(more cache.Indexers) error  { return i.indexer.AddIndexers(more) }
func (i *informer) HasSynced() bool                        { return i.started }
func (i *informer) LastSyncResourceVersion() string        { return i.indexer.LastStoreSyncResourceVersion() }
func (i *informer) HasSyncedChecker() cache.DoneChecker    { return synced{} }
func (i *informer) SetTransform(cache.TransformFunc) error { return nil }

func (i *informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, h)
	return synced{}, nil
}

// synced is a registration whose first list is in: the world lists before it lets
// any loop work.
type synced struct{}

func (synced) HasSynced() bool                     { return true }
func (synced) HasSyncedChecker() cache.DoneChecker { return synced{} }
func (synced) Name() string                        { return "simulated" }
func (synced) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// take does what a shared informer does with an event, duplicates included.
func (i *informer) take(e event) {
	old, has, err := i.indexer.Get(e.obj)
	must(err)
	switch {
	case e.gone:
		must(i.indexer.Delete(e.obj))
		for _, h := range i.handlers {
			h.OnDelete(e.obj)
		}
	case has:
		must(i.indexer.Update(e.obj))
		for _, h := range i.handlers {
			h.OnUpdate(old, e.obj)
		}
	default:
		must(i.indexer.Add(e.obj))
		for _, h := range i.handlers {
			h.OnAdd(e.obj, false)
		}
	}
}

// replace does what a shared informer does with a list: the store first, then the
// deletions that went unseen, then the rest.
func (i *informer) replace(objs []object, version string) {
	before := map[string]any{}
	for _, key := range i.indexer.ListKeys() {
		before[key], _, _ = i.indexer.GetByKey(key)
	}
	items := make([]any, len(objs))
	kept := map[string]bool{}
	for n, o := range objs {
		items[n] = o
		kept[keyOf(o)] = true
	}
	must(i.indexer.Replace(items, version))
	for _, key := range sortedKeys(before) {
		if !kept[key] {
			for _, h := range i.handlers {
				h.OnDelete(cache.DeletedFinalStateUnknown{Key: key, Obj: before[key]})
			}
		}
	}
	for _, o := range objs {
		for _, h := range i.handlers {
			if old := before[keyOf(o)]; old != nil {
				h.OnUpdate(old, o)
			} else {
				h.OnAdd(o, !i.started)
			}
		}
	}
	i.started = true
}

// factory hands out the world's informers.
type factory struct {
	informers.SharedInformerFactory // what loops do not call
	of                              map[resource]*informer
	other                           *informer // kinds the world has none of
}

func newFactory() *factory {
	f := &factory{of: map[resource]*informer{}, other: newInformer()}
	for _, res := range everything {
		f.of[res] = newInformer()
	}
	f.of[endpointSlices].indexer = sorted{f.of[endpointSlices].indexer}
	return f
}

func (f *factory) Apps() informersapps.Interface { return informersapps.New(f, "", nil) }
func (f *factory) Core() informerscore.Interface { return informerscore.New(f, "", nil) }
func (f *factory) Coordination() informerscoordination.Interface {
	return informerscoordination.New(f, "", nil)
}
func (f *factory) Discovery() informersdiscovery.Interface { return informersdiscovery.New(f, "", nil) }
func (f *factory) Networking() informersnetworking.Interface {
	return informersnetworking.New(f, "", nil)
}
func (f *factory) InformerName() *cache.InformerName { return nil }
func (f *factory) InformerFor(obj runtime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	switch obj.(type) {
	case *apps.Deployment:
		return f.of[deployments]
	case *apps.ReplicaSet:
		return f.of[replicaSets]
	case *v1.Pod:
		return f.of[pods]
	case *v1.Node:
		return f.of[nodes]
	case *coordination.Lease:
		return f.of[leases]
	case *v1.Namespace:
		return f.of[namespaces]
	case *v1.ServiceAccount:
		return f.of[serviceAccounts]
	case *v1.ConfigMap:
		return f.of[configMaps]
	case *v1.Service:
		return f.of[services]
	case *v1.Endpoints:
		return f.of[endpointsRes]
	case *discovery.EndpointSlice:
		return f.of[endpointSlices]
	case *networking.ServiceCIDR:
		return f.of[serviceCIDRs]
	case *networking.IPAddress:
		return f.of[ipAddresses]
	}
	return f.other
}

// metadataFeed is a watch of metadata only, as garbage collection reads it.
type metadataFeed struct{ store cache.ReflectorStore }

func (f metadataFeed) take(e event) {
	if e.gone {
		must(f.store.Delete(metadataOf(e.obj)))
	} else {
		must(f.store.Update(metadataOf(e.obj)))
	}
}

func (f metadataFeed) replace(objs []object, version string) {
	items := make([]any, len(objs))
	for n, o := range objs {
		items[n] = metadataOf(o)
	}
	must(f.store.Replace(items, version))
}

func metadataOf(o object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		OwnerReferences: o.GetOwnerReferences(), Finalizers: o.GetFinalizers(), DeletionTimestamp: o.GetDeletionTimestamp(),
	}}
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("the world is broken: %v", err))
	}
}

package catalog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Key names a Service.
type Key = types.NamespacedName

// Service is a Service and the EndpointSlices that carry its name. Both are shared:
// nobody may change them.
type Service struct {
	// Object is nil when there is no such Service, whatever slices are left of it.
	Object *v1.Service
	// Slices are sorted by name.
	Slices []*discovery.EndpointSlice
}

// Catalog holds the picture. Its methods may be called from any goroutine.
type Catalog struct {
	mu        sync.Mutex
	services  map[string]map[string]*v1.Service // namespace → name
	slices    map[Key]map[string]*discovery.EndpointSlice
	owner     map[Key]Key // slice → Service it was filed under
	version   uint64
	listed    [2]bool // Services, EndpointSlices
	followers []*Follower
}

// New returns an empty catalog; Run fills it.
func New() *Catalog {
	return &Catalog{
		services: map[string]map[string]*v1.Service{},
		slices:   map[Key]map[string]*discovery.EndpointSlice{},
		owner:    map[Key]Key{},
	}
}

// Run lists and watches with client until ctx ends. When the server cannot be reached
// it tries again, and the picture stays as it was.
func (c *Catalog) Run(ctx context.Context, client kubernetes.Interface, log *slog.Logger) {
	var running sync.WaitGroup
	watch := func(resource string, rest cache.Getter, example any, store cache.ReflectorStore) {
		lw := cache.NewListWatchFromClient(rest, resource, metav1.NamespaceAll, fields.Everything())
		reflector := cache.NewReflectorWithOptions(lw, example, store, cache.ReflectorOptions{Name: "catalog/" + resource})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
	watch("services", client.CoreV1().RESTClient(), &v1.Service{}, serviceStore{c})
	watch("endpointslices", client.DiscoveryV1().RESTClient(), &discovery.EndpointSlice{}, sliceStore{c})
	log.Debug("watching Services and EndpointSlices")
	running.Wait()
}

// Follower collects what changed since it last looked.
type Follower struct {
	catalog *Catalog
	dirty   map[Key]struct{}
	started bool
	wake    chan struct{}
}

// Follow returns a follower for which everything is new.
func (c *Catalog) Follow() *Follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &Follower{catalog: c, dirty: map[Key]struct{}{}, wake: make(chan struct{}, 1)}
	c.followers = append(c.followers, f)
	if c.complete() {
		f.begin()
	}
	return f
}

// Changed receives after something changed. One value may stand for many changes.
func (f *Follower) Changed() <-chan struct{} { return f.wake }

// Changes are the Services that changed, each as it is now.
type Changes struct {
	// First says that these are all Services that there are.
	First    bool
	Services map[Key]Service
	// Version is the resourceVersion of EndpointSlices that the picture has reached.
	Version uint64
}

// Take returns what changed since the last Take; false when nothing did, or while the
// first lists are not in.
func (f *Follower) Take() (Changes, bool) {
	c := f.catalog
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.complete() || f.started && len(f.dirty) == 0 {
		return Changes{}, false
	}
	out := Changes{First: !f.started, Services: make(map[Key]Service, len(f.dirty)), Version: c.version}
	for key := range f.dirty {
		out.Services[key] = c.service(key)
	}
	f.dirty, f.started = map[Key]struct{}{}, true
	return out, true
}

// Put marks Services as changed again, for a reader that could not use what it took.
func (f *Follower) Put(changes Changes) {
	c := f.catalog
	c.mu.Lock()
	defer c.mu.Unlock()
	f.started = f.started && !changes.First
	for key := range changes.Services {
		f.mark(key)
	}
}

// Again makes everything new for the follower, as it was at first.
func (f *Follower) Again() {
	c := f.catalog
	c.mu.Lock()
	defer c.mu.Unlock()
	f.started, f.dirty = false, map[Key]struct{}{}
	if c.complete() {
		f.begin()
	}
}

// Get returns a Service as it is now.
func (c *Catalog) Get(key Key) Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.service(key)
}

// Complete says whether both first lists are in.
func (c *Catalog) Complete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.complete()
}

// Selecting returns the Services of a namespace whose selector matches a Pod's labels,
// by key.
func (c *Catalog) Selecting(namespace string, podLabels map[string]string) map[Key]*v1.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[Key]*v1.Service{}
	for name, service := range c.services[namespace] {
		if selects(service, podLabels) {
			found[Key{Namespace: namespace, Name: name}] = service
		}
	}
	return found
}

func selects(service *v1.Service, podLabels map[string]string) bool {
	if len(service.Spec.Selector) == 0 || service.Spec.Type == v1.ServiceTypeExternalName {
		return false
	}
	return labels.Set(service.Spec.Selector).AsSelectorPreValidated().Matches(labels.Set(podLabels))
}

func (c *Catalog) complete() bool { return c.listed[0] && c.listed[1] }

func (c *Catalog) service(key Key) Service {
	found := slices.SortedFunc(maps.Values(c.slices[key]), func(a, b *discovery.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return Service{Object: c.services[key.Namespace][key.Name], Slices: found}
}

// begin gives a follower everything at once.
func (f *Follower) begin() {
	for namespace, services := range f.catalog.services {
		for name := range services {
			f.dirty[Key{Namespace: namespace, Name: name}] = struct{}{}
		}
	}
	for key := range f.catalog.slices {
		f.dirty[key] = struct{}{}
	}
	f.notify()
}

func (f *Follower) mark(key Key) {
	f.dirty[key] = struct{}{}
	f.notify()
}

func (f *Follower) notify() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// changed tells every follower. Before the first lists are in there is nothing to tell.
func (c *Catalog) changed(key Key) {
	if !c.complete() {
		return
	}
	for _, f := range c.followers {
		f.mark(key)
	}
}

// arrived notes a first list, and begins when it was the second.
func (c *Catalog) arrived(which int) {
	if c.listed[which] {
		return
	}
	c.listed[which] = true
	if c.complete() {
		for _, f := range c.followers {
			f.begin()
		}
	}
}

// reached moves the version. Once a list is in, events come in the order of their
// versions, so the version of an event says that all before it are in.
func (c *Catalog) reached(resourceVersion string) error {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("resourceVersion %q of an EndpointSlice: %w", resourceVersion, err)
	}
	c.version = version
	return nil
}

package apiservice

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
	"mend/internal/view"
)

// key is the only one this loop works on.
const key = namespace + "/" + name

// Config says where the API server is.
type Config struct {
	// ServiceIP is the Service's cluster address; empty leaves the choice to the
	// API server, which takes the first of its range.
	ServiceIP string
	// Addresses are those at which Pods reach the API server; at least one, none
	// of them loopback, which would be the Pod itself.
	Addresses []string
	// Port is the API server's own.
	Port int32
}

// check says what is wrong with the configuration, naming the field.
func (c Config) check() error {
	var errs []error
	if c.ServiceIP != "" {
		if _, err := netip.ParseAddr(c.ServiceIP); err != nil {
			errs = append(errs, fmt.Errorf("ServiceIP: %w", err))
		}
	}
	if len(c.Addresses) == 0 {
		errs = append(errs, errors.New("Addresses: at least one is required"))
	}
	for i, text := range c.Addresses {
		switch address, err := netip.ParseAddr(text); {
		case err != nil:
			errs = append(errs, fmt.Errorf("Addresses[%d]: %w", i, err))
		case address.IsLoopback(), address.IsUnspecified(), address.IsMulticast(), address.IsLinkLocalUnicast():
			errs = append(errs, fmt.Errorf("Addresses[%d]: Pods cannot reach the API server at %s", i, text))
		}
	}
	if c.Port < 1 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("Port: %d is not between 1 and 65535", c.Port))
	}
	return errors.Join(errs...)
}

// Declaration is this loop's row in the list of loops.
func Declaration(config Config) loop.Declaration {
	return loop.Declaration{
		Name:   "apiservice",
		Reads:  []string{"services", "endpoints", "endpointslices"},
		Writes: []string{"services:default/kubernetes", "endpoints:default/kubernetes", "endpointslices:default/kubernetes"},
		Build:  func(env loop.Env) (*loop.Loop, error) { return build(env, config) },
	}
}

type controller struct {
	config Config
	client kubernetes.Interface
	writes *view.Writes

	services, endpoints, endpointSlices cache.Store
}

func build(env loop.Env, config Config) (*loop.Loop, error) {
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("configuration of the kubernetes service: %w", err)
	}
	services := env.Informers.Core().V1().Services().Informer()
	endpoints := env.Informers.Core().V1().Endpoints().Informer()
	slices := env.Informers.Discovery().V1().EndpointSlices().Informer()
	c := &controller{
		config: config, client: env.Client,
		services: services.GetStore(), endpoints: endpoints.GetStore(), endpointSlices: slices.GetStore(),
		writes: view.NewWrites(map[string]cache.Store{
			"services": services.GetStore(), "endpoints": endpoints.GetStore(), "endpointslices": slices.GetStore()}),
	}
	l := loop.New(loop.Options{Name: "apiservice", Reconciler: c, Workers: 1, Clock: env.Clock, Log: env.Log})
	for _, informer := range []cache.SharedIndexInformer{services, endpoints, slices} {
		if _, err := informer.AddEventHandler(ours(l.Add)); err != nil {
			return nil, fmt.Errorf("register event handlers: %w", err)
		}
	}
	l.Add(key) // there may be no object to tell us of yet
	return l, nil
}

// ours passes on that one of the three objects changed.
func ours(again func(string)) cache.ResourceEventHandler {
	seen := func(obj any) {
		if late, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = late.Obj
		}
		if object, err := meta.Accessor(obj); err == nil && cache.MetaObjectToName(object).String() == key {
			again(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, obj any) { seen(obj) }, DeleteFunc: seen,
	}
}

// Sync brings the three objects up to date.
func (c *controller) Sync(ctx context.Context, _ string) (time.Time, error) {
	if !c.writes.CaughtUp(key) {
		return time.Time{}, loop.ErrStale
	}
	observed, err := c.observe()
	if err != nil {
		return time.Time{}, err
	}
	err = c.apply(ctx, MakePlan(observed, c.config))
	if err == nil && !c.writes.CaughtUp(key) {
		// What is deleted before the view shows it is told by no event.
		err = loop.ErrStale
	}
	return time.Time{}, err
}

func (c *controller) observe() (Observed, error) {
	service, err1 := get[*v1.Service](c.services)
	endpoints, err2 := get[*v1.Endpoints](c.endpoints)
	slice, err3 := get[*discovery.EndpointSlice](c.endpointSlices)
	return Observed{Service: service, Endpoints: endpoints, Slice: slice}, errors.Join(err1, err2, err3)
}

func get[T any](store cache.Store) (T, error) {
	var none T
	obj, exists, err := store.GetByKey(key)
	if err != nil || !exists {
		return none, err
	}
	return obj.(T), nil
}

package mirror

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"mend/internal/loop"
	"mend/internal/view"
)

// Declaration is the loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        "endpointslicemirror",
		EventSource: "endpoint-slice-mirroring-controller",
		Reads:       []string{"endpoints", "services", "endpointslices"},
		Writes:      []string{"endpointslices:mirrored"},
		Build:       build,
	}
}

// controller is the loop's [loop.Reconciler]. Keys are Endpoints.
type controller struct {
	client    kubernetes.Interface
	endpoints corelisters.EndpointsLister
	services  corelisters.ServiceLister
	slices    discoverylisters.EndpointSliceLister
	events    record.EventRecorder
	writes    *view.Writes
}

func build(env loop.Env) (*loop.Loop, error) {
	core, slices := env.Informers.Core().V1(), env.Informers.Discovery().V1().EndpointSlices()
	c := &controller{
		client: env.Client, endpoints: core.Endpoints().Lister(), services: core.Services().Lister(), slices: slices.Lister(), events: env.Events,
		writes: view.NewWrites(map[string]cache.Store{"endpointslices": slices.Informer().GetStore()}),
	}
	l := loop.New(loop.Options{Name: "endpointslicemirror", Reconciler: c, Workers: 2, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	return l, c.watch(env, l.Add)
}

// Sync makes the slices of the Endpoints named by key.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	if !c.writes.CaughtUp(key) {
		return time.Time{}, loop.ErrStale
	}
	o, err := c.observe(key)
	if err != nil {
		return time.Time{}, err
	}
	err = c.apply(ctx, key, o, plan(o))
	if err == nil && !c.writes.CaughtUp(key) {
		// What is deleted before the view shows it is told by no event.
		err = loop.ErrStale
	}
	return time.Time{}, err
}

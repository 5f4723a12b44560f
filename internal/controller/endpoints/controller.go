package endpoints

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	endpointsliceutil "k8s.io/endpointslice/util"

	"mend/internal/loop"
	"mend/internal/view"
)

// Declaration is the loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        "endpoints",
		EventSource: "endpoint-controller",
		Reads:       []string{"services", "pods", "endpoints"},
		Writes:      []string{"endpoints:selector"},
		Build:       build,
	}
}

// controller is the loop's [loop.Reconciler]. Keys are Services.
type controller struct {
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	events    record.EventRecorder
	log       *slog.Logger
	times     *endpointsliceutil.TriggerTimeTracker
	writes    *view.Writes
}

func build(env loop.Env) (*loop.Loop, error) {
	core := env.Informers.Core().V1()
	c := &controller{
		client: env.Client, services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(),
		events: env.Events, log: env.Log.With("loop", "endpoints"), times: endpointsliceutil.NewTriggerTimeTracker(),
		writes: view.NewWrites(map[string]cache.Store{"endpoints": core.Endpoints().Informer().GetStore()}),
	}
	l := loop.New(loop.Options{Name: "endpoints", Reconciler: c, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	return l, c.watch(env, l)
}

// Sync brings the Endpoints of the Service named by key up to date.
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

package loadbalancer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"mend/internal/loop"
	"mend/internal/view"
)

// Declaration is the loop's row in app's list. Reserved are ports that no Service may take
// from the nodes: those of the API and of the agent.
func Declaration(reserved ...int32) loop.Declaration {
	return loop.Declaration{
		Name:        "loadbalancer",
		EventSource: "service-controller",
		Reads:       []string{"services", "nodes", "endpointslices"},
		Writes:      []string{"services/status"},
		Build:       func(env loop.Env) (*loop.Loop, error) { return build(env, reserved) },
	}
}

// controller is the loop's [loop.Reconciler]. Keys are Services.
type controller struct {
	client   kubernetes.Interface
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	indexer  cache.Indexer
	events   record.EventRecorder
	writes   *view.Writes
	said     notes
	reserved []int32
}

// notes remembers what was said last of each Service.
type notes struct {
	mu    sync.Mutex
	byKey map[string]Note
}

func (n *notes) isNews(key string, note Note) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byKey[key] == note {
		return false
	}
	n.byKey[key] = note
	return note != Note{}
}

func (n *notes) forget(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byKey, key)
}

func build(env loop.Env, reserved []int32) (*loop.Loop, error) {
	core := env.Informers.Core().V1()
	informer := core.Services().Informer()
	if err := informer.AddIndexers(cache.Indexers{byPort: portKeys}); err != nil {
		return nil, fmt.Errorf("index Services by port: %w", err)
	}
	c := &controller{
		client: env.Client, services: core.Services().Lister(), nodes: core.Nodes().Lister(),
		slices: env.Informers.Discovery().V1().EndpointSlices().Lister(), indexer: informer.GetIndexer(), events: env.Events,
		writes: view.NewWrites(map[string]cache.Store{"services": informer.GetStore()}), said: notes{byKey: map[string]Note{}}, reserved: reserved,
	}
	l := loop.New(loop.Options{Name: "loadbalancer", Reconciler: c, Workers: 1, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	return l, c.watch(env, l.Add)
}

// Sync gives the Service named by key its addresses.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	if !c.writes.CaughtUp(key) {
		return time.Time{}, loop.ErrStale
	}
	o, ok, err := c.observe(key)
	if err != nil {
		return time.Time{}, err
	}
	if !ok {
		c.writes.Forget(key)
		c.said.forget(key)
		return time.Time{}, nil
	}
	return time.Time{}, c.apply(ctx, key, o, plan(o))
}

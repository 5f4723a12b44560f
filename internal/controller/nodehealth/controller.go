package nodehealth

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
	"mend/internal/view"
)

// pulse is the key under which the loop notices that it runs; no node can have
// this name.
const pulse = "/pulse"

// Declaration is this loop's row in the list of loops.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        "nodehealth",
		EventSource: "node-controller",
		Reads:       []string{"nodes", "leases", "pods"},
		Writes: []string{"nodes:spec.taints", "nodes/status:conditions=Unknown",
			"pods/status:conditions.Ready=False on silent nodes"},
		Build: build,
	}
}

// controller is the loop's reconciler; keys are node names and [pulse].
type controller struct {
	client kubernetes.Interface
	events record.EventRecorder
	clock  clock.Clock
	log    *slog.Logger
	nodes  cache.Indexer
	pods   cache.Indexer
	leases cache.Store
	writes *view.Writes
	fleet  *fleet
	again  func(key string)
	synced []cache.DoneChecker
}

func build(env loop.Env) (*loop.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes().Informer()
	pods := env.Informers.Core().V1().Pods().Informer()
	leases := env.Informers.Coordination().V1().Leases().Informer()
	if err := pods.AddIndexers(cache.Indexers{byNode: view.ByNode}); err != nil {
		return nil, fmt.Errorf("index pods by node: %w", err)
	}
	c := &controller{
		client: env.Client, events: env.Events, clock: env.Clock, log: env.Log,
		nodes: nodes.GetIndexer(), pods: pods.GetIndexer(), leases: leases.GetStore(),
		writes: view.NewWrites(map[string]cache.Store{"nodes": nodes.GetStore(), "pods": pods.GetStore()}),
		fleet:  newFleet(env.Clock.Now()),
	}
	l := loop.New(loop.Options{Name: "nodehealth", Reconciler: c, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	c.again = l.Add
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		nodes: c.nodeHandler(), pods: c.podHandler(), leases: c.leaseHandler(),
	} {
		registered, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("register event handlers: %w", err)
		}
		c.synced = append(c.synced, registered.HasSyncedChecker())
	}
	l.Add(pulse)
	return l, nil
}

// Sync looks at one node.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	if key == pulse {
		now := c.clock.Now()
		c.fleet.beat(now)
		return now.Add(pulseEvery), nil
	}
	if err := c.waitForFirstList(ctx); err != nil {
		return time.Time{}, err
	}
	if !c.writes.CaughtUp(key) {
		return time.Time{}, loop.ErrStale
	}
	observed, found, err := c.observe(ctx, key)
	if err != nil || !found {
		return time.Time{}, err
	}
	plan := MakePlan(observed, c.clock.Now())
	return plan.Recheck, c.apply(ctx, observed.Node, plan.Actions)
}

// waitForFirstList holds back until all nodes of the first list are counted: the
// brake must not be set by half of them.
func (c *controller) waitForFirstList(ctx context.Context) error {
	for _, informer := range c.synced {
		select {
		case <-informer.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

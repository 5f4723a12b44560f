package tainteviction

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
	"mend/internal/view"
)

const (
	// byNode is this loop's index of Pods.
	byNode      = "tainteviction:spec.nodeName"
	eventReason = "TaintManagerEviction"
)

// Declaration is this loop's row in the list of loops.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        "tainteviction",
		EventSource: "taint-eviction-controller",
		Reads:       []string{"nodes", "pods"},
		Writes:      []string{"pods:deletion under NoExecute taints", "pods/status:conditions.DisruptionTarget"},
		Build:       build,
	}
}

// controller is the loop's reconciler; keys are Pods.
type controller struct {
	client kubernetes.Interface
	events record.EventRecorder
	clock  clock.Clock
	log    *slog.Logger
	nodes  cache.Indexer
	pods   cache.Indexer
	writes *view.Writes

	mu    sync.Mutex
	since map[string]count // by Pod key
}

// count is since when a Pod has been under taints.
type count struct {
	pod   types.UID
	since time.Time
}

func build(env loop.Env) (*loop.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes().Informer()
	pods := env.Informers.Core().V1().Pods().Informer()
	if err := pods.AddIndexers(cache.Indexers{byNode: view.ByNode}); err != nil {
		return nil, fmt.Errorf("index pods by node: %w", err)
	}
	c := &controller{
		client: env.Client, events: env.Events, clock: env.Clock, log: env.Log,
		nodes: nodes.GetIndexer(), pods: pods.GetIndexer(), since: map[string]count{},
		writes: view.NewWrites(map[string]cache.Store{"pods": pods.GetStore()}),
	}
	l := loop.New(loop.Options{Name: "tainteviction", Reconciler: c, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	if _, err := pods.AddEventHandler(c.podHandler(l.Add)); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if _, err := nodes.AddEventHandler(c.nodeHandler(l.Add)); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return l, nil
}

// Sync looks at one Pod.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	if !c.writes.CaughtUp(key) {
		return time.Time{}, loop.ErrStale
	}
	observed, found, err := c.observe(key)
	if err != nil || !found {
		return time.Time{}, err
	}
	plan := MakePlan(observed, c.clock.Now())
	c.remember(key, count{pod: observed.Pod.UID, since: plan.Since})
	return plan.Recheck, c.apply(ctx, key, observed.Pod, plan)
}

// remember keeps since when the Pod counts; a zero time forgets it.
func (c *controller) remember(key string, counts count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if counts.since.IsZero() {
		delete(c.since, key)
	} else {
		c.since[key] = counts
	}
}

// remembered is what is kept of this very Pod, not of an older one of its name.
func (c *controller) remembered(key string, pod types.UID) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if counts := c.since[key]; counts.pod == pod {
		return counts.since
	}
	return time.Time{}
}

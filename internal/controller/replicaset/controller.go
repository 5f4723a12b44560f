package replicaset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apps "k8s.io/api/apps/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
	"mend/internal/view"
)

// workers is how many ReplicaSets are worked on at once; a worker spends its
// time waiting for the API server's disk.
const workers = 8

var kind = apps.SchemeGroupVersion.WithKind("ReplicaSet")

// Declaration is the ReplicaSet loop's row in app's list. Without a routing a Pod is
// available as soon as Kubernetes says so.
func Declaration(routing Routing) loop.Declaration {
	return loop.Declaration{
		Name:        "replicaset",
		EventSource: "replicaset-controller",
		Reads:       []string{"replicasets", "pods", "serviceaccounts"},
		// pods:replicas is how many Pods a ReplicaSet has and that it owns them.
		Writes: []string{"replicasets/status", "pods:replicas"},
		Build:  func(env loop.Env) (*loop.Loop, error) { return build(env, routing) },
	}
}

func build(env loop.Env, routing Routing) (*loop.Loop, error) {
	c, err := newController(env)
	if err != nil {
		return nil, err
	}
	c.routing = routing
	l := loop.New(loop.Options{
		Name: "replicaset", Reconciler: c, Workers: workers, Clock: env.Clock, Log: env.Log, Drive: env.Drive,
	})
	c.pace.wake, c.pace.later = l.Add, l.AddAt
	if err := c.watch(env.Informers, l.Add); err != nil {
		return nil, fmt.Errorf("register event handlers: %w", err)
	}
	return l, nil
}

// Controller is the ReplicaSet loop's [loop.Reconciler].
type Controller struct {
	client   kubernetes.Interface
	events   record.EventRecorder
	clock    clock.PassiveClock
	log      *slog.Logger
	view     snapshots
	writes   *view.Writes
	parallel int // how many Pods are created or deleted at once
	statuses statusTimes
	routing  Routing // may be nil
	pace     pace
}

func newController(env loop.Env) (*Controller, error) {
	sets := env.Informers.Apps().V1().ReplicaSets().Informer()
	pods := env.Informers.Core().V1().Pods().Informer()
	if err := sets.AddIndexers(cache.Indexers{byController: view.ByController}); err != nil {
		return nil, fmt.Errorf("index ReplicaSets by controller: %w", err)
	}
	if err := pods.AddIndexers(cache.Indexers{byController: view.ByController}); err != nil {
		return nil, fmt.Errorf("index Pods by controller: %w", err)
	}
	return &Controller{
		client:   env.Client,
		events:   env.Events,
		clock:    env.Clock,
		log:      env.Log.With("loop", "replicaset"),
		parallel: env.Drive.AtOnce(parallel),
		pace:     pace{clock: env.Clock},
		view:     snapshots{sets: sets.GetIndexer(), pods: pods.GetIndexer()},
		writes: view.NewWrites(map[string]cache.Store{
			"replicasets": sets.GetStore(),
			"pods":        pods.GetStore(),
		}),
	}, nil
}

// Sync brings the ReplicaSet named by key one plan further.
func (c *Controller) Sync(ctx context.Context, key string) (time.Time, error) {
	if !c.writes.CaughtUp(key) {
		return time.Time{}, loop.ErrStale
	}
	o, ok, err := c.view.observe(key)
	if err != nil {
		return time.Time{}, err
	}
	if !ok {
		c.writes.Forget(key)
		c.statuses.forget(key)
		c.pace.forget(key)
		return time.Time{}, nil
	}
	o.StatusWritten = c.statuses.last(key)
	now := c.clock.Now()
	o.Unrouted = unrouted(c.routing, o.Pods, now)
	c.pace.looks(key, now, len(o.Pods))
	p := plan(o, now)
	err = c.apply(ctx, key, o, p)
	var refused *refusedError
	if !errors.As(err, &refused) {
		return p.Recheck, err
	}
	// The refusal is an observation like any other: plan what to say about it.
	o.Failure = &Failure{Message: refused.Error()}
	if statusErr := c.apply(ctx, key, o, plan(o, now)); statusErr != nil {
		c.log.Warn("the refusal could not be written into the status", "key", key, "err", statusErr)
	}
	return time.Time{}, err
}

// statusTimes remembers when each ReplicaSet's status was last written by this
// process.
type statusTimes struct {
	mu    sync.Mutex
	byKey map[string]time.Time
}

func (s *statusTimes) last(key string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[key]
}

func (s *statusTimes) wrote(key string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[string]time.Time{}
	}
	s.byKey[key] = at
}

func (s *statusTimes) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}

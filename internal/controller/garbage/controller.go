package garbage

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
)

const (
	// Name is the loop's name.
	Name = "garbage"

	// discoveryKey is the one key that is no UID.
	discoveryKey = "discovery"
	// rediscovery is how often the list of kinds is read again; a change of a CRD
	// or an APIService brings it forward.
	rediscovery      = 30 * time.Second
	rediscoverySoon  = time.Second
	unseenPatience   = 100 * time.Millisecond
	syncLimit        = time.Minute
	workers          = 8
	freshObservation = 3
)

// Declaration is the loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        Name,
		EventSource: "garbage-collector-controller",
		Reads:       []string{"*:metadata"},
		Writes:      []string{"*:metadata.ownerReferences(dangling)", "*:metadata.finalizers(foregroundDeletion,orphan)", "*:delete(ownerless)"},
		Build:       build,
	}
}

type discoverer interface {
	ServerGroupsAndResourcesWithContext(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error)
}

type controller struct {
	clock  clock.WithTicker
	log    *slog.Logger
	events record.EventRecorder

	graph     *graph
	owners    *owners
	discovery discoverer
	client    metadata.Interface
	watches   map[schema.GroupVersionResource]*kindWatch // only the discovery key touches it

	dropsAtOnce int // how many dependents of one owner are patched at once
	listsAtOnce int // how many lists confirm the dependents of one owner at once

	enqueue   func(key string)
	enqueueAt func(key string, at time.Time)
}

func build(env loop.Env) (*loop.Loop, error) {
	client, err := metadata.NewForConfig(env.Rest)
	if err != nil {
		return nil, fmt.Errorf("garbage: metadata client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(env.Rest)
	if err != nil {
		return nil, fmt.Errorf("garbage: discovery client: %w", err)
	}
	c := newController(env.Clock, env.Log, env.Events, metadataServer{client})
	c.discovery, c.client = disco, client
	l := loop.New(loop.Options{Name: Name, Reconciler: c, Workers: workers, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	c.enqueue, c.enqueueAt = l.Add, l.AddAt
	l.Add(discoveryKey)
	return l, nil
}

func newController(clk clock.WithTicker, log *slog.Logger, events record.EventRecorder, s server) *controller {
	return &controller{
		clock: clk, log: log.With("loop", Name), events: events,
		dropsAtOnce: workers, listsAtOnce: listsAtOnce,
		graph: newGraph(), owners: newOwners(s), watches: map[schema.GroupVersionResource]*kindWatch{},
	}
}

// Sync looks at the object or the named owner with the UID key, or reads the
// list of kinds.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	if key == discoveryKey {
		return c.rediscover(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	return c.sync(ctx, types.UID(key))
}

// sync trusts the graph once. When the server then says that the object is not
// what it was, it is read from the server and judged anew; a busy writer may
// take a few rounds.
func (c *controller) sync(ctx context.Context, uid types.UID) (time.Time, error) {
	for round := 0; ; round++ {
		observed, err := c.observe(ctx, uid, round > 0)
		if err != nil {
			return time.Time{}, err
		}
		p := plan(observed, c.clock.Now())
		err = c.apply(ctx, p)
		if apierrors.IsConflict(err) && round < freshObservation {
			continue
		}
		return p.Recheck, err
	}
}

func (c *controller) examine(uid types.UID) { c.enqueue(string(uid)) }

func (c *controller) wake(w wakes) {
	for _, uid := range w.now {
		c.enqueue(string(uid))
	}
	if len(w.soon) == 0 {
		return
	}
	at := c.clock.Now().Add(unseenPatience)
	for _, uid := range w.soon {
		c.enqueueAt(string(uid), at)
	}
}

package namespace

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"mend/internal/loop"
)

const (
	// Name is the name of the loop that ends namespaces.
	Name = "namespace"

	// podsPatience gathers the ends of many Pods into one look.
	podsPatience = 100 * time.Millisecond
	// conflictPatience is the wait after another writer was faster.
	conflictPatience = 50 * time.Millisecond
	passLimit        = 2 * time.Minute
)

// Declaration is the row of the loop that ends namespaces.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:   Name,
		Reads:  []string{"namespaces", "pods", "*:metadata in terminating namespaces"},
		Writes: []string{"namespaces/status", "namespaces/finalize", "*:delete(in terminating namespaces)"},
		Build:  build,
	}
}

// Discovery says which kinds the server has.
type Discovery interface {
	ServerPreferredNamespacedResourcesWithContext(ctx context.Context) ([]*metav1.APIResourceList, error)
}

type controller struct {
	clock     clock.Clock
	log       *slog.Logger
	client    kubernetes.Interface
	metadata  metadata.Interface
	discovery Discovery
	lister    corelisters.NamespaceLister

	deletions loop.Anchors // by UID

	mu     sync.Mutex
	passed map[types.UID]memory
}

// memory is what the next pass is told about the ones before. It may be lost.
type memory struct {
	attempts map[schema.GroupVersionResource]int
	failures map[schema.GroupVersionResource]string // of the last pass
}

// next is the memory that a further pass begins with.
func (m memory) next() memory {
	attempts := maps.Clone(m.attempts)
	if attempts == nil {
		attempts = map[schema.GroupVersionResource]int{}
	}
	return memory{attempts: attempts, failures: map[schema.GroupVersionResource]string{}}
}

func build(env loop.Env) (*loop.Loop, error) {
	meta, err := metadata.NewForConfig(env.Rest)
	if err != nil {
		return nil, fmt.Errorf("namespace: metadata client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(env.Rest)
	if err != nil {
		return nil, fmt.Errorf("namespace: discovery client: %w", err)
	}
	return Drive(env, meta, disco)
}

// Drive builds the loop with the clients given: the simulator has its own.
func Drive(env loop.Env, meta metadata.Interface, disco Discovery) (*loop.Loop, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	c := &controller{
		clock: env.Clock, log: env.Log.With("loop", Name), client: env.Client, metadata: meta, discovery: disco,
		lister: namespaces.Lister(), passed: map[types.UID]memory{},
	}
	l := loop.New(loop.Options{Name: Name, Reconciler: c, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	enqueue := func(obj any) {
		if n, ok := obj.(*corev1.Namespace); ok && n.DeletionTimestamp != nil {
			l.Add(n.Name)
		}
	}
	if _, err := namespaces.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
	}); err != nil {
		return nil, err
	}
	_, err := env.Informers.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) {
			if name, ok := c.terminatingNamespaceOf(obj); ok {
				l.AddAt(name, c.clock.Now().Add(podsPatience))
			}
		},
	})
	return l, err
}

func (c *controller) terminatingNamespaceOf(obj any) (string, bool) {
	key, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return "", false
	}
	n, err := c.lister.Get(key.Namespace)
	return key.Namespace, err == nil && n.DeletionTimestamp != nil
}

// Sync makes one pass over the namespace named key.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, passLimit)
	defer cancel()
	observed, err := c.observe(ctx, key)
	if err != nil || observed.Namespace == nil {
		return time.Time{}, err
	}
	p := plan(observed, c.clock.Now())
	err = c.apply(ctx, observed.Namespace, p)
	switch {
	case apierrors.IsNotFound(err):
		c.forget(observed.Namespace.UID)
		return time.Time{}, nil
	case apierrors.IsConflict(err):
		return c.clock.Now().Add(conflictPatience), nil
	}
	return p.Recheck, err
}

func (c *controller) memoryOf(uid types.UID) memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed[uid]
}

func (c *controller) remember(uid types.UID, m memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed[uid] = m
}

func (c *controller) forget(uid types.UID) {
	c.deletions.Forget(string(uid))
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.passed, uid)
}

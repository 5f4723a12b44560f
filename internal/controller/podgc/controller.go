package podgc

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"mend/internal/loop"
)

const (
	// Name is the loop's name.
	Name = "podgc"

	// Keys: what is looked at.
	nodePrefix = "node/" // node/<name>: the Pods of a node
	podPrefix  = "pod/"  // pod/<namespace>/<name>: a Pod bound to no node
	endedKey   = "ended" // all that have ended

	// endedPatience gathers many ends into one count.
	endedPatience = 20 * time.Second
	syncLimit     = 2 * time.Minute
)

// Declaration is the loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:   Name,
		Reads:  []string{"pods", "nodes"},
		Writes: []string{"pods/status:phase=Failed of Pods without a node", "pods:deletion without a node"},
		Build:  build,
	}
}

type controller struct {
	clock  clock.Clock
	log    *slog.Logger
	client kubernetes.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	add    func(key string)
	addAt  func(key string, at time.Time)

	mu      sync.Mutex
	missing map[string]time.Time // node → since when
}

func build(env loop.Env) (*loop.Loop, error) {
	pods, nodes := env.Informers.Core().V1().Pods(), env.Informers.Core().V1().Nodes()
	c := &controller{
		clock: env.Clock, log: env.Log.With("loop", Name), client: env.Client,
		pods: pods.Lister(), nodes: nodes.Lister(), missing: map[string]time.Time{},
	}
	l := loop.New(loop.Options{Name: Name, Reconciler: c, Workers: 1, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	c.add, c.addAt = l.Add, l.AddAt
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				c.podSeen(pod, false)
			}
		},
		UpdateFunc: func(old, obj any) {
			before, ok := old.(*corev1.Pod)
			pod, isPod := obj.(*corev1.Pod)
			if ok && isPod {
				c.podSeen(pod, hasEnded(before))
			}
		},
	}); err != nil {
		return nil, err
	}
	_, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			if node, ok := obj.(*corev1.Node); ok && isOutOfService(node) {
				l.Add(nodePrefix + node.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				l.Add(nodePrefix + key.Name)
			}
		},
	})
	l.AddAt(endedKey, c.clock.Now().Add(endedPatience))
	return l, err
}

// podSeen decides cheaply whether an event concerns this loop at all.
func (c *controller) podSeen(pod *corev1.Pod, hadEnded bool) {
	if hasEnded(pod) && !hadEnded {
		c.addAt(endedKey, c.clock.Now().Add(endedPatience))
	}
	switch {
	case isDone(pod):
	case pod.Spec.NodeName == "":
		if pod.DeletionTimestamp != nil {
			c.add(podPrefix + pod.Namespace + "/" + pod.Name)
		}
	default:
		node, err := c.nodes.Get(pod.Spec.NodeName)
		if err != nil || pod.DeletionTimestamp != nil && isOutOfService(node) {
			c.add(nodePrefix + pod.Spec.NodeName)
		}
	}
}

// Sync looks at what key names.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	var p Plan
	if node, isNode := strings.CutPrefix(key, nodePrefix); isNode {
		return c.syncNode(ctx, node)
	} else if name, isPod := strings.CutPrefix(key, podPrefix); isPod {
		namespace, name, _ := strings.Cut(name, "/")
		pod, _ := c.pods.Pods(namespace).Get(name) // nil: gone
		p = planUnbound(pod, c.clock.Now())
	} else {
		p = planEnded(c.allPods(), c.clock.Now())
	}
	return p.Recheck, c.apply(ctx, p)
}

func (c *controller) syncNode(ctx context.Context, node string) (time.Time, error) {
	observed, err := c.observeNode(ctx, node)
	if err != nil {
		return time.Time{}, err
	}
	p := planNode(observed, c.clock.Now())
	err = c.apply(ctx, p)
	if err == nil && observed.State == NodeGone {
		c.setPresent(node) // done; a later Pod begins a quarantine of its own
	}
	return p.Recheck, err
}

// missingSince notes when a node was first missed.
func (c *controller) missingSince(node string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, known := c.missing[node]
	if !known {
		since = c.clock.Now()
		c.missing[node] = since
	}
	return since
}

func (c *controller) setPresent(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.missing, node)
}

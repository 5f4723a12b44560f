package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
)

// name is what Pods call this scheduler in spec.schedulerName, and what its
// events show as their source.
const name = v1.DefaultSchedulerName

// workers is how many bindings may be on their way at once. Planning itself is
// one Pod at a time.
const workers = 8

// Declaration is the scheduler's row in the list of loops.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        "scheduler",
		EventSource: name,
		Reads:       []string{"pods", "nodes"},
		Writes:      []string{"pods/binding", "pods/status:conditions.PodScheduled"},
		Build:       build,
	}
}

// Scheduler is the loop's reconciler; keys are Pods. Sync may be called from
// several goroutines.
type Scheduler struct {
	api    podAPI
	events record.EventRecorder
	clock  clock.Clock
	log    *slog.Logger
	store  cache.Store // Pods
	turns  *turnstile
	again  func(key string)
	later  func(key string, at time.Time)
	synced []cache.DoneChecker

	mu      sync.Mutex
	cluster *Cluster
	waiting *waiting
	assumed map[types.UID]*assumption
	// told is the condition last written to each Pod that is not bound: the
	// cache may not show it yet, and must not be believed to.
	told map[types.UID]told
}

type told struct{ reason, message string }

// assumption is a binding of ours that the cache has not shown yet. The Pod
// counts on its node from the moment the node is chosen until the cache shows
// what became of it.
type assumption struct {
	node string
	// confirmed: the API server said yes. Until then every sync sends the same
	// binding again, because an answer that was lost may have been a yes.
	confirmed bool
}

func build(env loop.Env) (*loop.Loop, error) {
	pods := env.Informers.Core().V1().Pods().Informer()
	nodes := env.Informers.Core().V1().Nodes().Informer()
	s := &Scheduler{
		api: clientAPI{env.Client}, events: env.Events, clock: env.Clock, log: env.Log, store: pods.GetStore(),
		turns: newTurnstile(), cluster: NewCluster(), waiting: newWaiting(),
		assumed: map[types.UID]*assumption{}, told: map[types.UID]told{},
	}
	l := loop.New(loop.Options{
		Name: "scheduler", Reconciler: s, Workers: workers, Clock: env.Clock, Log: env.Log,
		Drive: env.Drive, Order: &podQueue{lookup: s.lookup, turns: s.turns},
	})
	s.again, s.later = l.Add, l.AddAt
	onPods, err := pods.AddEventHandler(s.podHandler())
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	onNodes, err := nodes.AddEventHandler(s.nodeHandler())
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	s.synced = []cache.DoneChecker{onPods.HasSyncedChecker(), onNodes.HasSyncedChecker()}
	return l, nil
}

// Sync places the Pod named by key, or says why it cannot be placed.
func (s *Scheduler) Sync(ctx context.Context, key string) (time.Time, error) {
	var decided decision
	var err error
	s.turns.pass(key, func() { decided, err = s.decide(ctx, key) })
	if err != nil {
		return time.Time{}, err
	}
	return s.apply(ctx, decided)
}

// decision is a plan and the Pod it is for.
type decision struct {
	pod *v1.Pod
	Plan
}

// decide plans under the lock and takes the plan's effects into account at once,
// so that the next Pod is planned as if this one were already bound.
func (s *Scheduler) decide(ctx context.Context, key string) (decision, error) {
	if err := s.waitForFirstList(ctx); err != nil {
		return decision{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.lookup(key)
	if pod == nil || !isOurs(pod) || pod.Spec.NodeName != "" {
		s.leave(key)
		return decision{}, nil
	}
	if a := s.assumed[pod.UID]; a != nil {
		if a.confirmed {
			return decision{}, nil
		}
		return decision{pod: pod, Plan: Plan{Bind: &Bind{Node: a.node, Why: assigned(pod, a.node)}}}, nil
	}
	plan := s.plan(key, pod)
	if plan.Refuse == nil {
		s.leave(key)
	}
	return decision{pod: pod, Plan: plan}, nil
}

// plan is MakePlan, spared where the same question was answered for another Pod
// and nothing has changed since.
func (s *Scheduler) plan(key string, pod *v1.Pod) Plan {
	if !needsNode(pod) {
		return MakePlan(s.cluster, pod)
	}
	d := DemandOf(pod)
	shape := ""
	if len(s.waiting.groups) > 0 {
		shape = d.shape()
		if known := s.waiting.refusalFor(shape, s.cluster.version); known != nil {
			s.waiting.park(key, shape, d, known, s.cluster.version)
			return Plan{Refuse: known}
		}
	}
	plan := planFor(s.cluster, d)
	switch {
	case plan.Refuse != nil:
		if shape == "" {
			shape = d.shape()
		}
		s.waiting.park(key, shape, d, plan.Refuse, s.cluster.version)
	case plan.Bind != nil:
		s.cluster.assume(pod.UID, d, plan.Bind.Node)
		s.assumed[pod.UID] = &assumption{node: plan.Bind.Node}
	}
	return plan
}

// leave takes key out of the waiting Pods and has the next of its kind tried.
func (s *Scheduler) leave(key string) {
	if next := s.waiting.leave(key); next != "" {
		s.again(next)
	}
}

func (s *Scheduler) lookup(key string) *v1.Pod {
	obj, ok, err := s.store.GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	pod, _ := obj.(*v1.Pod)
	return pod
}

// waitForFirstList holds planning back until every Pod and node of the first
// list is counted: a node that looks empty because its Pods are not read yet
// would be over-committed.
func (s *Scheduler) waitForFirstList(ctx context.Context) error {
	for _, informer := range s.synced {
		select {
		case <-informer.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

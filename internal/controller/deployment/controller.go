package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apps "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
	"mend/internal/view"
)

// workers is how many Deployments are worked on at once; a worker spends its time
// waiting for the API server's disk.
const workers = 8

var kind = apps.SchemeGroupVersion.WithKind("Deployment")

// Declaration is the Deployment loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        "deployment",
		EventSource: "deployment-controller",
		Reads:       []string{"deployments", "replicasets", "pods"},
		// deployments/status includes the Deployment's revision annotation.
		Writes: []string{"deployments/status", "replicasets:spec", "replicasets:metadata.annotations"},
		Build:  build,
	}
}

func build(env loop.Env) (*loop.Loop, error) {
	c, err := newController(env)
	if err != nil {
		return nil, err
	}
	l := loop.New(loop.Options{
		Name: "deployment", Reconciler: c, Workers: workers, Clock: env.Clock, Log: env.Log, Drive: env.Drive,
	})
	if err := c.watch(env.Informers, l.Add); err != nil {
		return nil, fmt.Errorf("register event handlers: %w", err)
	}
	return l, nil
}

// Controller is the Deployment loop's [loop.Reconciler].
type Controller struct {
	client kubernetes.Interface
	events record.EventRecorder
	clock  clock.PassiveClock
	log    *slog.Logger
	view   snapshots
	writes *view.Writes
	// updated are when Deployments' Progressing conditions were updated.
	updated loop.Anchors
}

func newController(env loop.Env) (*Controller, error) {
	deployments := env.Informers.Apps().V1().Deployments().Informer()
	sets := env.Informers.Apps().V1().ReplicaSets().Informer()
	pods := env.Informers.Core().V1().Pods().Informer()
	if err := sets.AddIndexers(cache.Indexers{byController: view.ByController}); err != nil {
		return nil, fmt.Errorf("index ReplicaSets by controller: %w", err)
	}
	if err := pods.AddIndexers(cache.Indexers{byController: view.ByController}); err != nil {
		return nil, fmt.Errorf("index Pods by controller: %w", err)
	}
	return &Controller{
		client: env.Client,
		events: env.Events,
		clock:  env.Clock,
		log:    env.Log.With("loop", "deployment"),
		view:   snapshots{deployments: deployments.GetIndexer(), sets: sets.GetIndexer(), pods: pods.GetIndexer()},
		writes: view.NewWrites(map[string]cache.Store{
			"deployments": deployments.GetStore(),
			"replicasets": sets.GetStore(),
		}),
	}, nil
}

// Sync brings the Deployment named by key one plan further.
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
		c.updated.Forget(key)
		return time.Time{}, nil
	}
	if progressing := find(o.Deployment.Status.Conditions, apps.DeploymentProgressing); progressing != nil {
		o.Updated = c.updated.Anchor(key, progressing.LastUpdateTime.Time, c.clock.Now())
	}
	p := plan(o, c.clock.Now())
	err = c.apply(ctx, key, o, p)
	var refused *refusedError
	if !errors.As(err, &refused) {
		return p.Recheck, err
	}
	// The refusal is an observation like any other: plan what to do about it.
	if err := c.observeRefusal(ctx, &o, refused); err != nil {
		return time.Time{}, err
	}
	p = plan(o, c.clock.Now())
	if applyErr := c.apply(ctx, key, o, p); applyErr != nil || o.NameHolder != nil {
		return p.Recheck, applyErr
	}
	return time.Time{}, refused
}

// observeRefusal adds to o why the ReplicaSet could not be created.
func (c *Controller) observeRefusal(ctx context.Context, o *Observed, refused *refusedError) error {
	if !refused.nameTaken {
		o.Failure = &Failure{ReplicaSet: refused.name, Message: refused.err.Error()}
		return nil
	}
	holder, err := c.client.AppsV1().ReplicaSets(o.Deployment.Namespace).Get(ctx, refused.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look at the ReplicaSet that has the name: %w", err)
	}
	o.NameHolder = holder
	others := slices.DeleteFunc(slices.Clone(o.ReplicaSets), func(rs *apps.ReplicaSet) bool { return rs.UID == holder.UID })
	o.ReplicaSets = append(others, holder)
	return nil
}

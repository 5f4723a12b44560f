package garbage

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
)

// Driven is this loop in other hands, as [loop.Drive] says: its plan, apply and
// graph are the real ones; which kinds are served, and what their watches show
// when, is told to it.
type Driven struct {
	Loop *loop.Loop
	// Feeds take, by resource, what a watch would deliver. Objects are
	// *metav1.PartialObjectMetadata; the first call must be Replace, the list.
	Feeds map[schema.GroupVersionResource]cache.ReflectorStore
}

// Drive builds the loop for the kinds given, which it reaches through client.
func Drive(env loop.Env, client metadata.Interface, kinds []Kind) Driven {
	c := newController(env.Clock, env.Log, env.Events, metadataServer{client})
	c.dropsAtOnce, c.listsAtOnce = env.Drive.AtOnce(c.dropsAtOnce), env.Drive.AtOnce(c.listsAtOnce)
	l := loop.New(loop.Options{Name: Name, Reconciler: c, Workers: workers, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	c.enqueue, c.enqueueAt = l.Add, l.AddAt
	served := catalog{served: map[schema.GroupVersionKind]Kind{}, watched: kinds}
	d := Driven{Loop: l, Feeds: map[schema.GroupVersionResource]cache.ReflectorStore{}}
	for _, kind := range kinds {
		served.served[kind.Resource.GroupVersion().WithKind(kind.Kind)] = kind
		d.Feeds[kind.Resource] = &feed{controller: c, kind: c.graph.watch(kind, env.Clock.Now())}
	}
	c.owners.setCatalog(served)
	return d
}

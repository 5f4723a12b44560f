package app

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/apiserver"
	"mend/internal/controller/apiservice"
	"mend/internal/controller/deployment"
	"mend/internal/controller/endpoints"
	"mend/internal/controller/endpoints/endpointslice"
	"mend/internal/controller/endpoints/mirror"
	"mend/internal/controller/garbage"
	"mend/internal/controller/ipaddress"
	"mend/internal/controller/loadbalancer"
	"mend/internal/controller/namespace"
	"mend/internal/controller/nodehealth"
	"mend/internal/controller/podgc"
	"mend/internal/controller/replicaset"
	"mend/internal/controller/rootca"
	"mend/internal/controller/serviceaccount"
	"mend/internal/controller/servicecidr"
	"mend/internal/controller/tainteviction"
	"mend/internal/events"
	"mend/internal/loop"
	"mend/internal/scheduler"
	"mend/internal/view"
)

// loops is the one list of everything that reconciles. Ranges are those of Services'
// addresses, reserved the ports of the nodes that no Service may take.
func loops(caPEM []byte, api apiservice.Config, routing replicaset.Routing, ranges []string, reserved ...int32) []loop.Declaration {
	return []loop.Declaration{
		deployment.Declaration(),
		replicaset.Declaration(routing),
		scheduler.Declaration(),
		garbage.Declaration(),
		namespace.Declaration(),
		namespace.SystemDeclaration(),
		serviceaccount.Declaration(),
		rootca.Declaration(caPEM),
		podgc.Declaration(),
		nodehealth.Declaration(),
		tainteviction.Declaration(),
		apiservice.Declaration(api),
		endpointslice.Declaration(),
		mirror.Declaration(),
		endpoints.Declaration(),
		loadbalancer.Declaration(reserved...),
		servicecidr.Declaration(ranges...),
		ipaddress.Declaration(),
	}
}

// startLoops builds and runs every loop. It returns when the informers have
// their first lists.
func (p *process) startLoops(ctx context.Context) error {
	var routing replicaset.Routing
	if p.host != nil {
		routing = p.host.routing()
	}
	list := loops(p.pki.CAPEM(), p.apiService, routing, p.serviceRanges(), p.apiService.Port)
	if err := checkOwners(list); err != nil {
		return err
	}
	shared, err := kubernetes.NewForConfig(p.api.ClientConfig("informers"))
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(shared, 0, informers.WithTransform(view.StripManagedFields))
	p.watchDirectly(factory)
	var built []*loop.Loop
	for _, declaration := range list {
		made, err := p.buildLoop(declaration, factory)
		if err != nil {
			return fmt.Errorf("loop %s: %w", declaration.Name, err)
		}
		built = append(built, made)
	}
	factory.Start(p.loops.ctx.Done())
	p.loops.run(func(ctx context.Context) { <-ctx.Done(); factory.Shutdown() })
	limited, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for kind, synced := range factory.WaitForCacheSync(limited.Done()) {
		if !synced {
			return fmt.Errorf("informer of %v has no list", kind)
		}
	}
	for _, made := range built {
		p.loops.run(made.Run)
	}
	p.built = built
	return nil
}

// watchDirectly has the informers of the kinds that change most read past the
// encoding of the API.
func (p *process) watchDirectly(factory informers.SharedInformerFactory) {
	for plural, object := range map[string]runtime.Object{
		"pods": &corev1.Pod{}, "replicasets": &appsv1.ReplicaSet{}, "deployments": &appsv1.Deployment{}, "nodes": &corev1.Node{},
	} {
		factory.InformerFor(object, func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			return cache.NewSharedIndexInformer(p.api.ListWatch(plural, nil), object, resync,
				cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		})
	}
}

func (p *process) buildLoop(declaration loop.Declaration, factory informers.SharedInformerFactory) (*loop.Loop, error) {
	client, err := p.api.Client(declaration.Name)
	if err != nil {
		return nil, err
	}
	source := declaration.EventSource
	if source == "" {
		source = declaration.Name
	}
	return declaration.Build(loop.Env{
		Client:    client,
		Rest:      p.api.ClientConfig(declaration.Name),
		Informers: factory,
		Events:    p.recorder(corev1.EventSource{Component: source}),
		Clock:     clock.RealClock{},
		Log:       p.log,
	})
}

// startEvents makes the one broadcaster through which all parts tell events, and
// the writer behind it.
func (p *process) startEvents() error {
	client, err := kubernetes.NewForConfig(p.api.ClientConfig(apiserver.EventsUser))
	if err != nil {
		return err
	}
	writer := events.New(events.Config{
		Sink:  &typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")},
		Busy:  func() bool { return p.api.Writing() >= busyWrites },
		Clock: clock.RealClock{},
		Log:   p.log,
	})
	p.events = record.NewBroadcaster(record.WithContext(p.control.ctx))
	p.events.StartEventWatcher(writer.Take)
	p.control.run(writer.Run)
	return nil
}

// busyWrites is how many writes at once mean that Pods come and go in numbers: a
// few leases and one rollout of ten Pods are less.
const busyWrites = 8

func (p *process) recorder(source corev1.EventSource) record.EventRecorder {
	return p.events.NewRecorder(scheme.Scheme, source)
}

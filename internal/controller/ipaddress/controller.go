package ipaddress

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"mend/internal/loop"
)

const (
	// Name is the loop's name.
	Name = "ipaddress"

	servicePrefix = "service/" // service/<namespace>/<name>
	recordPrefix  = "address/" // address/<name of the IPAddress>

	// afterService is how long the API server has to delete the IPAddresses of a Service
	// that has gone.
	afterService = 5 * time.Second
)

// Declaration is the loop's row in app's list.
func Declaration() loop.Declaration {
	return loop.Declaration{
		Name:        Name,
		EventSource: "ipallocator-repair-controller",
		Reads:       []string{"services", "ipaddresses", "servicecidrs"},
		Writes:      []string{"ipaddresses:managed by ipallocator.k8s.io"},
		Build:       build,
	}
}

type controller struct {
	client   kubernetes.Interface
	services corelisters.ServiceLister
	records  networkinglisters.IPAddressLister
	cidrs    networkinglisters.ServiceCIDRLister
	events   record.EventRecorder
	clock    clock.Clock
	log      *slog.Logger
}

func build(env loop.Env) (*loop.Loop, error) {
	services, networking := env.Informers.Core().V1().Services(), env.Informers.Networking().V1()
	c := &controller{
		client: env.Client, services: services.Lister(), records: networking.IPAddresses().Lister(), cidrs: networking.ServiceCIDRs().Lister(),
		events: env.Events, clock: env.Clock, log: env.Log.With("loop", Name),
	}
	l := loop.New(loop.Options{Name: Name, Reconciler: c, Workers: 1, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	if _, err := services.Informer().AddEventHandler(c.serviceEvents(l)); err != nil {
		return nil, err
	}
	_ = networking.ServiceCIDRs().Informer() // has it watched
	_, err := networking.IPAddresses().Informer().AddEventHandler(c.recordEvents(l))
	return l, err
}

// serviceEvents wakes a Service when its addresses are new, and the addresses that one has
// given up.
func (c *controller) serviceEvents(l *loop.Loop) cache.ResourceEventHandler {
	given := func(s *v1.Service) {
		for _, ip := range s.Spec.ClusterIPs {
			l.AddAt(recordPrefix+recordName(ip), c.clock.Now().Add(afterService))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { l.Add(servicePrefix + cache.MetaObjectToName(obj.(*v1.Service)).String()) },
		UpdateFunc: func(old, obj any) {
			before, s := old.(*v1.Service), obj.(*v1.Service)
			if fmt.Sprint(before.Spec.ClusterIPs) != fmt.Sprint(s.Spec.ClusterIPs) {
				l.Add(servicePrefix + cache.MetaObjectToName(s).String())
				given(before)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if s, ok := obj.(*v1.Service); ok {
				given(s)
			}
		},
	}
}

// recordEvents wakes an IPAddress, and the Service that it says or said to be for, when it
// is changed or gone.
func (c *controller) recordEvents(l *loop.Loop) cache.ResourceEventHandler {
	see := func(obj any, parent bool) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		r, ok := obj.(*networkingv1.IPAddress)
		if !ok {
			return
		}
		l.Add(recordPrefix + r.Name)
		if parent && refersToService(r) {
			l.Add(servicePrefix + r.Spec.ParentRef.Namespace + "/" + r.Spec.ParentRef.Name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { see(obj, false) },
		UpdateFunc: func(old, obj any) { see(old, true); see(obj, true) },
		DeleteFunc: func(obj any) { see(obj, true) },
	}
}

// Sync looks at the Service or IPAddress named key.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	if name, isRecord := strings.CutPrefix(key, recordPrefix); isRecord {
		r, p, err := c.lookAtRecord(ctx, name)
		if err != nil {
			return time.Time{}, err
		}
		return p.Recheck, c.apply(ctx, r, p)
	}
	s, p, err := c.lookAtService(ctx, strings.TrimPrefix(key, servicePrefix))
	if err != nil {
		return time.Time{}, err
	}
	return p.Recheck, c.apply(ctx, s, p)
}

// lookAtService plans a second time from what the server has, if there seems to be
// something to do: a cache that is behind knows Services without their IPAddresses, and
// those that have gone.
func (c *controller) lookAtService(ctx context.Context, key string) (*v1.Service, Plan, error) {
	s, claims, ranges, err := c.observeService(key)
	if err != nil || s == nil {
		return nil, Plan{}, err
	}
	if p := planService(s, claims, ranges, c.clock.Now()); len(p.Actions) == 0 {
		return s, p, nil
	}
	live, err := c.readService(ctx, s.Namespace, s.Name)
	if err != nil || live == nil {
		return nil, Plan{}, err
	}
	if claims, err = c.readClaims(ctx, live); err != nil {
		return nil, Plan{}, err
	}
	return live, c.untilSeen(planService(live, claims, ranges, c.clock.Now())), nil
}

// lookAtRecord plans a second time with the Service that the server has, if the IPAddress
// seems to be in nobody's use: a cache that is behind does not know a new Service, and an
// IPAddress may seem old as soon as the clock is set forward.
func (c *controller) lookAtRecord(ctx context.Context, name string) (*networkingv1.IPAddress, Plan, error) {
	r, s := c.observeRecord(name)
	p := planRecord(r, s, c.clock.Now())
	if len(p.Actions) == 0 || !refersToService(r) {
		return r, p, nil
	}
	live, err := c.readService(ctx, r.Spec.ParentRef.Namespace, r.Spec.ParentRef.Name)
	if err != nil {
		return nil, Plan{}, err
	}
	return r, c.untilSeen(planRecord(r, live, c.clock.Now())), nil
}

// untilSeen has a plan that was made with what the server has looked at again, until the
// view agrees: what is deleted before the view shows it is told by no event.
func (c *controller) untilSeen(p Plan) Plan {
	if p.Recheck.IsZero() {
		p.Recheck = c.clock.Now().Add(time.Second)
	}
	return p
}

// apply stops at the first failure. Events tell what was done.
func (c *controller) apply(ctx context.Context, about runtime.Object, p Plan) error {
	api := c.client.NetworkingV1().IPAddresses()
	for _, a := range p.Actions {
		var err error
		if a.Delete != nil {
			err = api.Delete(ctx, a.Delete.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.Delete.UID, ResourceVersion: &a.Delete.ResourceVersion}})
			if apierrors.IsNotFound(err) {
				err = nil
			}
		}
		if err == nil && a.Create != nil {
			_, err = api.Create(ctx, a.Create, metav1.CreateOptions{})
		}
		switch {
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			return loop.ErrStale
		case err != nil:
			return fmt.Errorf("repair an IPAddress: %w", err)
		}
		if a.Note != nil {
			c.log.Warn(a.Note.Message)
			c.events.Event(about, v1.EventTypeWarning, a.Note.Reason, a.Note.Message)
		}
	}
	return nil
}

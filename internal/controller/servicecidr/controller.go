package servicecidr

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"mend/internal/loop"
)

const (
	// Name is the loop's name.
	Name = "servicecidr"
	// defaultName is that of the ServiceCIDR which always exists.
	defaultName = "kubernetes"
	// addressManager marks the IPAddresses that come with Services.
	addressManager = "ipallocator.k8s.io"
)

// Declaration is the loop's row in app's list. Ranges are those of the default ServiceCIDR.
func Declaration(ranges ...string) loop.Declaration {
	return loop.Declaration{
		Name:        Name,
		EventSource: "service-cidr-controller",
		Reads:       []string{"servicecidrs", "ipaddresses"},
		Writes:      []string{"servicecidrs:kubernetes", "servicecidrs:metadata.finalizers(service-cidr)", "servicecidrs/status"},
		Build:       func(env loop.Env) (*loop.Loop, error) { return build(env, ranges) },
	}
}

type controller struct {
	client    kubernetes.Interface
	cidrs     networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	ranges    []string
	clock     clock.Clock
	log       *slog.Logger
}

func build(env loop.Env, ranges []string) (*loop.Loop, error) {
	networking := env.Informers.Networking().V1()
	c := &controller{
		client: env.Client, cidrs: networking.ServiceCIDRs().Lister(), addresses: networking.IPAddresses().Lister(),
		ranges: ranges, clock: env.Clock, log: env.Log.With("loop", Name),
	}
	l := loop.New(loop.Options{Name: Name, Reconciler: c, Workers: 1, Clock: env.Clock, Log: env.Log, Drive: env.Drive})
	wake := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			l.Add(key.Name)
		}
	}
	if _, err := networking.ServiceCIDRs().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { wake(obj); c.leaving(nil, l.Add) },
		UpdateFunc: func(_, obj any) { wake(obj) },
		DeleteFunc: wake,
	}); err != nil {
		return nil, err
	}
	byAddress := func(obj any) {
		key, err := cache.DeletionHandlingObjectToName(obj)
		if err != nil {
			return
		}
		if a, err := netip.ParseAddr(key.Name); err == nil {
			c.leaving(&a, l.Add)
		}
	}
	_, err := networking.IPAddresses().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    byAddress,
		UpdateFunc: func(_, obj any) { byAddress(obj) }, // it may not be a Service's any more
		DeleteFunc: byAddress,
	})
	if len(ranges) > 0 {
		l.Add(defaultName)
	}
	return l, err
}

// leaving wakes the ServiceCIDRs that are being deleted: those that hold the address, or
// all.
func (c *controller) leaving(a *netip.Addr, wake func(string)) {
	for _, one := range c.all() {
		if one.DeletionTimestamp != nil && (a == nil || contains(prefixes(one), *a)) {
			wake(one.Name)
		}
	}
}

// all reads from an informer, whose lister does not fail.
func (c *controller) all() []*networkingv1.ServiceCIDR {
	found, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return nil
	}
	return found
}

// Sync looks at the ServiceCIDR named key.
func (c *controller) Sync(ctx context.Context, key string) (time.Time, error) {
	p := plan(c.observe(key), c.clock.Now())
	return p.Recheck, c.apply(ctx, p)
}

func (c *controller) observe(name string) Observed {
	o := Observed{}
	if name == defaultName && len(c.ranges) > 0 {
		o.Default = &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: defaultName}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: c.ranges}}
	}
	found, err := c.cidrs.Get(name)
	if err != nil {
		return o
	}
	o.CIDR = found
	if found.DeletionTimestamp == nil {
		return o
	}
	for _, other := range c.all() {
		if other.Name != name {
			o.Others = append(o.Others, other)
		}
	}
	managed, err := c.addresses.List(labels.Set{networkingv1.LabelManagedBy: addressManager}.AsSelectorPreValidated())
	if err != nil {
		return o
	}
	for _, a := range managed {
		o.Addresses = append(o.Addresses, a.Name)
	}
	return o
}

func (c *controller) apply(ctx context.Context, p Plan) error {
	api := c.client.NetworkingV1().ServiceCIDRs()
	var err error
	switch {
	case p.Create != nil:
		_, err = api.Create(ctx, p.Create, metav1.CreateOptions{})
	case p.Update != nil:
		_, err = api.Update(ctx, p.Update, metav1.UpdateOptions{})
	case p.Status != nil:
		_, err = api.UpdateStatus(ctx, p.Status, metav1.UpdateOptions{})
	default:
		return nil
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write a ServiceCIDR (%s): %w", p.Why, err)
	}
	c.log.Debug("wrote a ServiceCIDR", "why", p.Why)
	if p.Create != nil {
		return loop.ErrStale // what is deleted before the view shows it is told by no event
	}
	return nil
}

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	serviceapi "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/api/servicecidr"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
)

var (
	errIPTaken    = errors.New("provided IP is already allocated")
	errPortTaken  = errors.New("provided port is already allocated")
	errFull       = errors.New("range is full")
	errWrongRange = errors.New("the provided network does not match the current range")
)

const (
	// DefaultServiceCIDR is the ServiceCIDR made of Config.ServiceClusterIPRange.
	DefaultServiceCIDR = "kubernetes"
	// addressManager marks the IPAddresses that come with Services, as upstream's.
	addressManager = "ipallocator.k8s.io"
)

// addressBook says which Service holds which address and node port.
//
// Who has an address is stored as an IPAddress of that name, which is created before the
// Service is and deleted after it: two that want the same cannot both create it. The
// stored Services are read once, when the book is first needed, and those without an
// IPAddress get theirs (an older mend made none). The memory of it guards an address also
// while somebody has deleted its IPAddress by hand. Node ports are kept in memory only:
// this server is the only one that creates Services.
type addressBook struct {
	services, cidrs, records *resource

	defaults  []netip.Prefix  // the first one's family is the default
	families  []core.IPFamily // of defaults
	ports     pool
	portRange string

	mu      sync.Mutex
	holders map[netip.Addr]types.UID
	loading sync.Mutex
	loaded  bool
}

// pool hands out the numbers first…last. Upstream keeps the low part for those
// who ask for a number by themselves as long as there are others.
type pool struct {
	first, dynamic, last int
	holders              map[int]types.UID
}

func newAddressBook(ranges []netip.Prefix, ports [2]int, resources map[string]*resource) *addressBook {
	b := &addressBook{
		services: resources["services"], cidrs: resources["servicecidrs"], records: resources["ipaddresses"],
		defaults: ranges, holders: map[netip.Addr]types.UID{},
		portRange: fmt.Sprintf("%d-%d", ports[0], ports[1]),
		ports:     pool{first: ports[0], dynamic: ports[0] + reserve(ports[1]-ports[0]+1, 16, 128), last: ports[1], holders: map[int]types.UID{}},
	}
	for _, r := range ranges {
		b.families = append(b.families, familyOf(r.Addr()))
	}
	return b
}

// reserve is how many numbers of a range are kept: a sixteenth of small ones.
func reserve(size, least, most int) int {
	if size <= least {
		return 0
	}
	return min(max(size/16, least), most)
}

// pick takes a free number at random: one that was just released is unlikely to
// come back while somebody still remembers who had it.
func (p *pool) pick(holder types.UID) (int, error) {
	for _, part := range [][2]int{{p.dynamic, p.last}, {p.first, p.dynamic - 1}} {
		size := part[1] - part[0] + 1
		if size <= 0 {
			continue
		}
		start := rand.IntN(size)
		for i := range size {
			number := part[0] + (start+i)%size
			if _, taken := p.holders[number]; !taken {
				p.holders[number] = holder
				return number, nil
			}
		}
	}
	return 0, errFull
}

func (p *pool) release(number int, holder types.UID) {
	if p.holders[number] == holder {
		delete(p.holders, number)
	}
}

// ofKubernetes is the address of default/kubernetes, which nobody else gets.
func (b *addressBook) ofKubernetes() netip.Addr { return b.defaults[0].Addr().Next() }

// hold notes that the holder takes the address, unless somebody has it.
func (b *addressBook) hold(a netip.Addr, holder types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, taken := b.holders[a]; taken {
		return false
	}
	b.holders[a] = holder
	return true
}

func (b *addressBook) release(a netip.Addr, holder types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holders[a] == holder {
		delete(b.holders, a)
	}
}

// ranges are those of the family from which addresses may be given now: of ServiceCIDRs
// that are not being deleted, and not said to be unready. With version "0" they come from
// the watch cache.
func (b *addressBook) ranges(ctx context.Context, family core.IPFamily, version string) ([]addressRange, error) {
	found, err := b.cidrs.List(requestFor(ctx, b.cidrs, ""), &metainternalversion.ListOptions{ResourceVersion: version})
	if err != nil {
		return nil, err
	}
	var ranges []addressRange
	for _, c := range found.(*networking.ServiceCIDRList).Items {
		if c.DeletionTimestamp != nil || !isReady(&c) {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil || familyOf(prefix.Addr()) != family {
				continue
			}
			if r, ok := newAddressRange(prefix); ok {
				ranges = append(ranges, r)
			}
		}
	}
	return ranges, nil
}

// isReady takes a ServiceCIDR without a condition for ready, as upstream: nobody may have
// looked at it yet.
func isReady(c *networking.ServiceCIDR) bool {
	for _, condition := range c.Status.Conditions {
		if string(condition.Type) == networkingv1.ServiceCIDRConditionReady {
			return condition.Status == metav1.ConditionTrue
		}
	}
	return true
}

// inRanges says whether one of the ranges gives the address.
func inRanges(ranges []addressRange, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r addressRange) bool { return servicecidr.PrefixContainsIP(r.prefix, a) })
}

// record creates the IPAddress, and returns errIPTaken if there is one.
func (b *addressBook) record(ctx context.Context, s *core.Service, a netip.Addr) error {
	made := &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: a.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(a)), networkingv1.LabelManagedBy: addressManager}},
		Spec: networking.IPAddressSpec{ParentRef: &networking.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
	_, err := b.records.Create(requestFor(ctx, b.records, made.Name), made, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return errIPTaken
	}
	return err
}

// errNotOurs ends a deletion.
var errNotOurs = errors.New("the IPAddress is another Service's")

// unrecord deletes the IPAddress if it is the Service's. One that stays behind keeps the
// address from others until the loop ipaddress collects it.
func (b *addressBook) unrecord(ctx context.Context, s types.NamespacedName, a netip.Addr) error {
	ours := func(_ context.Context, obj runtime.Object) error {
		parent := obj.(*networking.IPAddress).Spec.ParentRef
		if parent == nil || parent.Resource != "services" || parent.Namespace != s.Namespace || parent.Name != s.Name {
			return errNotOurs
		}
		return nil
	}
	ctx = requestFor(context.WithoutCancel(ctx), b.records, a.String())
	_, _, err := b.records.Delete(ctx, a.String(), ours, &metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) || errors.Is(err, errNotOurs) {
		return nil
	}
	return err
}

// requestFor is the context of an operation on another, cluster-wide kind while a request
// for a Service is served.
func requestFor(ctx context.Context, r *resource, name string) context.Context {
	return genericapirequest.WithNamespace(genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: r.kind.group, APIVersion: r.kind.version, Resource: r.kind.plural, Name: name,
	}), metav1.NamespaceNone)
}

// recordsAtOnce is how many IPAddresses are created at once for Services of an older mend:
// the store writes to disk once for many.
const recordsAtOnce = 32

// load reads the stored Services and makes what is missing, once.
func (b *addressBook) load(ctx context.Context) error {
	b.loading.Lock()
	defer b.loading.Unlock()
	if b.loaded {
		return nil
	}
	if err := b.ensureDefault(ctx); err != nil {
		return err
	}
	found, err := b.services.List(requestFor(ctx, b.services, ""), &metainternalversion.ListOptions{})
	if err != nil {
		return err
	}
	listed, err := b.records.List(requestFor(ctx, b.records, ""), &metainternalversion.ListOptions{})
	if err != nil {
		return err
	}
	recorded := map[string]bool{}
	for _, r := range listed.(*networking.IPAddressList).Items {
		recorded[r.Name] = true
	}
	creating, group := errgroup.WithContext(ctx)
	creating.SetLimit(recordsAtOnce)
	for _, s := range found.(*core.ServiceList).Items {
		for _, a := range b.take(&s) {
			if !recorded[a.String()] && b.isDefault(a) {
				creating.Go(func() error {
					if err := b.record(group, &s, a); err != nil && !errors.Is(err, errIPTaken) {
						return err
					}
					return nil
				})
			}
		}
	}
	if err := creating.Wait(); err != nil {
		return fmt.Errorf("record the addresses of Services: %w", err)
	}
	b.loaded = true
	return nil
}

// take notes what a stored Service holds, and returns its addresses.
func (b *addressBook) take(s *core.Service) []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	addresses := addressesOf(s)
	for _, a := range addresses {
		b.holders[a] = s.UID
	}
	for _, n := range nodePortsOf(s) {
		b.ports.holders[n] = s.UID
	}
	return addresses
}

func (b *addressBook) isDefault(a netip.Addr) bool {
	return slices.ContainsFunc(b.defaults, func(p netip.Prefix) bool { return servicecidr.PrefixContainsIP(p, a) })
}

// ensureDefault creates the default ServiceCIDR, or adds the second family to one that
// has only the first, as upstream.
func (b *addressBook) ensureDefault(ctx context.Context) error {
	ctx = requestFor(ctx, b.cidrs, DefaultServiceCIDR)
	var want []string
	for _, p := range b.defaults {
		want = append(want, p.String())
	}
	found, err := b.cidrs.Get(ctx, DefaultServiceCIDR, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		made := &networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: DefaultServiceCIDR}, Spec: networking.ServiceCIDRSpec{CIDRs: want}}
		_, err = b.cidrs.Create(ctx, made, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	have := found.(*networking.ServiceCIDR)
	if len(have.Spec.CIDRs) != 1 || len(want) != 2 || have.Spec.CIDRs[0] != want[0] {
		return nil
	}
	have = have.DeepCopy()
	have.Spec.CIDRs = want
	_, _, err = b.cidrs.Update(ctx, DefaultServiceCIDR, rest.DefaultUpdatedObjectInfo(have),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}

// addressesOf are the addresses that a Service of its type holds.
func addressesOf(s *core.Service) []netip.Addr {
	if s.Spec.Type == core.ServiceTypeExternalName {
		return nil
	}
	var addresses []netip.Addr
	for _, ip := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// nodePortsOf are the node ports that a Service of its type holds.
func nodePortsOf(s *core.Service) []int {
	var numbers []int
	for _, port := range s.Spec.Ports {
		if port.NodePort != 0 && hasNodePorts(s) {
			numbers = append(numbers, int(port.NodePort))
		}
	}
	if serviceapi.NeedsHealthCheck(s) && s.Spec.HealthCheckNodePort > 0 {
		numbers = append(numbers, int(s.Spec.HealthCheckNodePort))
	}
	return numbers
}

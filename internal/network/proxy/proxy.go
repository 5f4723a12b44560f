package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"mend/internal/network/catalog"
)

const (
	checkEvery = 15 * time.Second
	// retryFirst and retryMost bound the pause after the kernel refused everything.
	retryFirst = 100 * time.Millisecond
	retryMost  = 10 * time.Second
)

// Proxy carries the Services of a catalog. Only Run uses it.
type Proxy struct {
	c        Config
	follower *catalog.Follower
	kernel   *kernel
	flows    *conntrack
	routes   *netlink.Handle
	ledger   *ledger
	health   *healthPorts
	leaving  *leaving

	// version is what the ledger has; behind says that the kernel has not.
	version uint64
	behind  bool
	retry   time.Duration
	// checkEvery is how often it is looked whether somebody took the table away.
	checkEvery time.Duration
}

// New opens the sockets in the network namespace of the calling thread. It changes
// nothing. It needs CAP_NET_ADMIN.
func New(c Config) (*Proxy, error) {
	if c.InstanceID == "" || c.Catalog == nil || c.Log == nil {
		return nil, errors.New("the proxy needs an instance id, a catalog and a log")
	}
	k, err := openKernel(c)
	if err != nil {
		return nil, err
	}
	flows, err := openConntrack()
	if err != nil {
		k.close()
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		k.close()
		flows.close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	p := &Proxy{
		c: c, follower: c.Catalog.Follow(), kernel: k, flows: flows, routes: handle, ledger: newLedger(), leaving: newLeaving(), checkEvery: checkEvery,
		health: &healthPorts{log: c.Log, listen: listenTCP, byKey: map[catalog.Key]*healthPort{}},
	}
	if c.Programmed == nil {
		p.c.Programmed = func(uint64) {}
	}
	return p, nil
}

// Remove deletes an instance's tables of these families, or of all when none is named, for
// good. Nothing there is no error.
func Remove(instanceID string, families ...Family) error {
	if len(families) == 0 {
		families = []Family{IPv4, IPv6}
	}
	k, err := openKernel(Config{InstanceID: instanceID, Families: families})
	if err != nil {
		return err
	}
	defer k.close()
	return k.remove()
}

// Run carries Services until ctx ends. The tables stay behind.
func (p *Proxy) Run(ctx context.Context) {
	defer p.close()
	check := time.NewTicker(p.checkEvery)
	defer check.Stop()
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.follower.Changed():
			p.follow()
		case <-again.C:
			p.resync()
		case <-check.C:
			p.check()
		case <-p.leaving.due.C:
			p.forget(&stale{c: p.c, left: p.leaving.take(time.Now())})
		}
		if p.behind {
			p.retry = min(max(2*p.retry, retryFirst), retryMost)
			again.Reset(p.retry)
		}
	}
}

func (p *Proxy) close() {
	p.kernel.close()
	p.flows.close()
	p.routes.Close()
	p.health.closeAll()
}

// follow takes what changed and brings it into the kernel.
func (p *Proxy) follow() {
	changes, ok := p.follower.Take()
	if !ok {
		return
	}
	next := make(map[catalog.Key]Rendering, len(changes.Services))
	for key, service := range changes.Services {
		next[key] = p.rendered(key, service)
	}
	flows := newStale(p.c)
	for key, r := range next {
		flows.note(p.ledger.services[key].UDP, r.UDP)
		p.setHealth(key, changes.Services[key].Object, r.Health)
	}
	d := p.ledger.change(next)
	p.version = changes.Version
	if changes.First || p.behind {
		p.resync()
	} else if !d.isEmpty() {
		if err := p.kernel.commit(d); err != nil {
			p.c.Log.Warn("the kernel refused a change of Services; everything is compared anew", "services", slices.Collect(maps.Keys(next)), "err", err)
			p.resync()
		}
	}
	p.forget(flows)
	p.confirm()
	p.leaving.note(changes, time.Now())
	p.dropUnused()
}

// rendered renders a Service; one that makes render panic has nothing in the kernel.
func (p *Proxy) rendered(key catalog.Key, s catalog.Service) (r Rendering) {
	defer func() {
		if cause := recover(); cause != nil {
			p.c.Log.Error("panic while rendering a Service", "service", key, "panic", cause, "stack", string(debug.Stack()))
			r = Rendering{}
		}
	}()
	return render(p.c, s)
}

// confirm tells how far the kernel is.
func (p *Proxy) confirm() {
	if !p.behind {
		p.c.Programmed(p.version)
	}
}

// check looks whether somebody else flushed the rules.
func (p *Proxy) check() {
	if there, err := p.kernel.isThere(); err == nil && there || p.version == 0 {
		return
	} else if err != nil {
		p.c.Log.Warn("cannot look at the nftables table", "err", err)
	} else {
		p.c.Log.Warn("the nftables table was taken away by somebody else; it is made anew")
	}
	p.resync()
	p.confirm()
}

// resync makes the kernel hold what the ledger has, whatever it holds now: it commits
// the difference or, where the table is not as it should be, the whole.
func (p *Proxy) resync() {
	start := time.Now()
	err := p.compare()
	if err != nil {
		err = p.isolate(err)
	}
	if p.behind = err != nil; p.behind {
		p.c.Log.Error("Services cannot be brought into the kernel; it will be tried again", "err", err)
		return
	}
	p.retry = 0
	if err := p.route(); err != nil {
		p.c.Log.Warn("ClusterIPs have no route; the node itself may not reach them", "err", err)
	}
	p.c.Log.Info("the kernel has all Services", "services", len(p.ledger.services), "elements", len(p.ledger.claims), "took", time.Since(start))
}

// compare reads the tables and commits what is different.
func (p *Proxy) compare() error {
	if err := p.reopen(); err != nil {
		return err
	}
	held, err := p.kernel.read()
	if errors.Is(err, errForeign) {
		if err := p.kernel.rebuild(p.ledger); err != nil {
			return err
		}
		p.forget(&stale{c: p.c, lost: true})
		return nil
	}
	if err != nil {
		return err
	}
	var d Difference
	for s, claims := range p.ledger.claims {
		value, there := held[s]
		if there && value == claims[0].value {
			continue
		}
		if there {
			d.Delete = append(d.Delete, s.element(value))
		}
		d.Add = append(d.Add, s.element(claims[0].value))
	}
	for s, value := range held {
		if len(p.ledger.claims[s]) == 0 {
			d.Delete = append(d.Delete, s.element(value))
		}
	}
	slices.SortFunc(d.Delete, compareElements)
	slices.SortFunc(d.Add, compareElements)
	d.AddClasses, d.DropClasses = p.compareClasses()
	return p.kernel.commit(d)
}

func (p *Proxy) compareClasses() (add, drop map[Family][]Class) {
	for _, family := range p.c.families() {
		for k := range p.ledger.classes[family] {
			if !p.kernel.chains[family][k] {
				add = put(add, family, k)
			}
		}
		for k := range p.kernel.chains[family] {
			if _, used := p.ledger.classes[family][k]; !used {
				drop = put(drop, family, k)
			}
		}
	}
	return add, drop
}

// reopen takes a new socket: an old one may hold answers to what failed.
func (p *Proxy) reopen() error {
	k, err := openKernel(p.c)
	if err != nil {
		return err
	}
	p.kernel.close()
	p.kernel = k
	return nil
}

// isolate finds the Services because of which nothing can be committed, and leaves them
// out until they change. It returns cause when there are none.
func (p *Proxy) isolate(cause error) error {
	if errors.Is(cause, unix.EPERM) {
		return cause
	}
	services := p.ledger.services
	p.ledger = newLedger()
	if err := errors.Join(p.reopen(), p.kernel.rebuild(p.ledger)); err != nil {
		p.ledger.change(services)
		return cause // it is not for want of room for one of them
	}
	for key, r := range services {
		if err := p.kernel.commit(p.ledger.change(map[catalog.Key]Rendering{key: r})); err == nil {
			continue
		} else {
			p.c.Log.Error("the kernel refuses this Service; it is left out until it changes", "service", key, "err", err)
		}
		p.ledger.change(map[catalog.Key]Rendering{key: {}})
		if err := p.reopenAndRead(); err != nil {
			return err
		}
	}
	return nil
}

func (p *Proxy) reopenAndRead() error {
	if err := p.reopen(); err != nil {
		return err
	}
	_, err := p.kernel.read()
	return err
}

func (p *Proxy) forget(flows *stale) {
	if flows.isEmpty() {
		return
	}
	local, err := p.localAddrs()
	if err != nil {
		p.c.Log.Warn("flows to a node port may go on to nowhere", "err", err)
	}
	flows.isLocal = func(a netip.Addr) bool { return slices.Contains(local, a) }
	n, err := p.flows.forget(flows, p.c.families())
	if err != nil {
		p.c.Log.Warn("flows to endpoints that are gone may go on", "err", err)
	}
	if n > 0 {
		p.c.Log.Debug("forgot flows", "count", n)
	}
}

func (p *Proxy) localAddrs() ([]netip.Addr, error) {
	all, err := p.routes.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range all {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs, nil
}

func (p *Proxy) setHealth(key catalog.Key, s *v1.Service, h *Health) {
	err := p.health.set(key, h)
	if err == nil {
		return
	}
	p.c.Log.Warn("a load balancer will find this node unhealthy", "err", err)
	if p.c.Events != nil && s != nil {
		p.c.Events.Eventf(s, v1.EventTypeWarning, "FailedToStartServiceHealthcheck", "node %s failed to start healthcheck %q on port %d: %v",
			p.c.NodeName, key.String(), h.Port, err)
	}
}

func (p *Proxy) dropUnused() {
	if err := p.kernel.dropUnused(time.Now()); err != nil {
		p.c.Log.Debug("chains that nobody needs stay for now", "err", err)
		if err := p.reopenAndRead(); err != nil {
			p.behind = true
		}
	}
}

// route leads ClusterIPs to the bridge: a connection needs a route before its
// destination is translated, and the node's source must be one that Pods can answer.
func (p *Proxy) route() error {
	if p.c.Bridge == "" {
		return nil
	}
	link, err := p.routes.LinkByName(p.c.Bridge)
	if err != nil {
		return fmt.Errorf("find the bridge: %w", err)
	}
	for _, r := range p.c.ServiceRanges {
		if !slices.Contains(p.c.families(), familyOf(r.Addr())) {
			continue
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(r), Protocol: unix.RTPROT_STATIC}
		if err := p.routes.RouteReplace(route); err != nil {
			return fmt.Errorf("route %v to %s: %w", r, p.c.Bridge, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

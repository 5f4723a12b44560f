package traffic

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	netutils "k8s.io/utils/net"

	"mend/internal/network/catalog"
)

// Limit is how long endpoints and proxies together may hold a Pod's end up.
const Limit = 2 * time.Second

// Config is what a gate looks at.
type Config struct {
	Catalog *catalog.Catalog
	Acks    *Acks
	// NetNS returns the path of a Pod's network namespace, in which the gate looks for
	// requests in flight; false when the Pod has none of its own or it is not known. It may
	// block. Nil: requests in flight are not waited for.
	NetNS func(pod types.UID) (path string, ok bool)
	Log   *slog.Logger
}

// Gate tells when traffic has left a Pod, and when it has arrived. Its methods may be
// called from any goroutine.
type Gate struct {
	c        Config
	follower *catalog.Follower
	wake     chan struct{}

	mu      sync.Mutex
	waiting map[types.UID]*wait
	// shown says since which version of its slices a Service shows a Pod as ready.
	shown map[catalog.Key]map[types.UID]uint64
	// asked are the Pods that were not routed when somebody asked.
	asked    map[types.UID]question
	onRouted []func(types.NamespacedName)
}

// question is when somebody asked whether a Pod is routed.
type question struct {
	pod *v1.Pod
	at  time.Time
}

// interest is for how long an answer to a question is of interest: who asks counts the
// Pod as routed after [Limit] anyway.
const interest = 10 * Limit

// wait is a Pod's end that is held up.
type wait struct {
	pod   *v1.Pod
	left  chan struct{}
	limit *time.Timer
	// listed are the Services that do not show it as terminating yet; need is the
	// version at which all others do. Known says that there were Services to look at.
	listed map[catalog.Key]bool
	known  bool
	need   uint64
	// ctx ends with the wait, or when its caller does not want it any more.
	ctx    context.Context
	cancel context.CancelFunc
}

// NewGate returns a gate; Run makes it work.
func NewGate(c Config) *Gate {
	g := &Gate{
		c: c, follower: c.Catalog.Follow(), wake: make(chan struct{}, 1),
		waiting: map[types.UID]*wait{}, shown: map[catalog.Key]map[types.UID]uint64{}, asked: map[types.UID]question{},
	}
	c.Acks.changed = g.acksChanged
	return g
}

func (g *Gate) acksChanged() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Run follows Services and confirmations until ctx ends. The catalog and the acks must
// run too.
func (g *Gate) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.follower.Changed():
			if changes, ok := g.follower.Take(); ok {
				g.see(changes)
			}
		case <-g.wake:
		}
		g.settle()
	}
}

// closed is a channel that is closed.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// LeftEndpoints returns a channel that is closed when no new connection reaches the Pod
// through a Service and requests in flight are answered, or when the bounds are reached
// (see the package's comment), or when ctx ends. It is to be asked for once a Pod has a
// deletion timestamp, before anything of it is ended; asking again returns the same
// channel. It does not block.
func (g *Gate) LeftEndpoints(ctx context.Context, pod *v1.Pod) <-chan struct{} {
	limit := min(Limit, grace(pod)/2)
	if pod.DeletionTimestamp == nil || !couldBeEndpoint(pod) || limit <= 0 {
		return closed
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.waiting[pod.UID]; w != nil {
		return w.left
	}
	known := g.c.Catalog.Complete() // before the look: it may become so meanwhile
	services := g.holding(pod)
	if known && len(services) == 0 {
		return closed
	}
	w := &wait{pod: pod, left: make(chan struct{}), listed: services, known: known}
	w.ctx, w.cancel = context.WithCancel(ctx)
	g.waiting[pod.UID] = w
	w.limit = time.AfterFunc(limit, func() { g.giveUp(w) })
	context.AfterFunc(w.ctx, func() { g.end(w) })
	for key := range services {
		g.lookUp(w, g.c.Catalog.Get(key), key)
	}
	g.settleOne(w)
	return w.left
}

// grace is the Pod's grace period.
func grace(pod *v1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds != nil {
		return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	}
	return 0
}

// couldBeEndpoint is false for Pods that no EndpointSlice holds: without an address, or
// done.
func couldBeEndpoint(pod *v1.Pod) bool {
	return pod.Status.PodIP != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// holding are the Services that the Pod has to leave.
func (g *Gate) holding(pod *v1.Pod) map[catalog.Key]bool {
	keys := map[catalog.Key]bool{}
	for key, service := range g.c.Catalog.Selecting(pod.Namespace, pod.Labels) {
		if !service.Spec.PublishNotReadyAddresses && sharesFamily(service, pod) {
			keys[key] = true
		}
	}
	return keys
}

func sharesFamily(service *v1.Service, pod *v1.Pod) bool {
	if len(service.Spec.IPFamilies) == 0 {
		return true
	}
	ips := pod.Status.PodIPs
	if len(ips) == 0 {
		ips = []v1.PodIP{{IP: pod.Status.PodIP}}
	}
	return slices.ContainsFunc(ips, func(ip v1.PodIP) bool {
		family := v1.IPv4Protocol
		if netutils.IsIPv6String(ip.IP) {
			family = v1.IPv6Protocol
		}
		return slices.Contains(service.Spec.IPFamilies, family)
	})
}

// lookUp notes whether the Service shows the Pod as terminating, and since which version.
func (g *Gate) lookUp(w *wait, service catalog.Service, key catalog.Key) {
	if !w.listed[key] {
		return
	}
	if service.Object == nil {
		delete(w.listed, key) // the Service is gone, and its routes with it
		return
	}
	found, version := false, uint64(0)
	for _, slice := range service.Slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.TargetRef == nil || e.TargetRef.UID != w.pod.UID {
				continue
			}
			if e.Conditions.Terminating == nil || !*e.Conditions.Terminating {
				return
			}
			found, version = true, max(version, versionOf(slice))
		}
	}
	if found {
		delete(w.listed, key)
		w.need = max(w.need, version)
	}
}

func versionOf(slice *discovery.EndpointSlice) uint64 {
	version, err := strconv.ParseUint(slice.ResourceVersion, 10, 64)
	if err != nil {
		return 0 // the catalog takes no such slice
	}
	return version
}

// see takes what changed.
func (g *Gate) see(changes catalog.Changes) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.waiting {
		if changes.First {
			w.listed, w.known = g.holding(w.pod), true // asked for before there was anything to look at
		}
	}
	byService := map[catalog.Key][]*wait{}
	for _, w := range g.waiting {
		for key := range w.listed {
			byService[key] = append(byService[key], w)
		}
	}
	for key, service := range changes.Services {
		g.show(key, service)
		for _, w := range byService[key] {
			g.lookUp(w, service, key)
		}
	}
}

// show notes since when a Service shows which Pods as ready.
func (g *Gate) show(key catalog.Key, service catalog.Service) {
	before, now := g.shown[key], map[types.UID]uint64{}
	for _, slice := range service.Slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.TargetRef == nil || e.Conditions.Ready == nil || !*e.Conditions.Ready {
				continue
			}
			version, there := before[e.TargetRef.UID]
			if !there {
				version = versionOf(slice)
			}
			now[e.TargetRef.UID] = version
		}
	}
	if service.Object == nil || len(now) == 0 {
		delete(g.shown, key)
		return
	}
	g.shown[key] = now
}

// settle ends the waits that are over, and tells of Pods that are routed now.
func (g *Gate) settle() {
	g.mu.Lock()
	for _, w := range g.waiting {
		g.settleOne(w)
	}
	var routed []types.NamespacedName
	for uid, q := range g.asked {
		switch {
		case g.isRouted(q.pod):
			routed = append(routed, types.NamespacedName{Namespace: q.pod.Namespace, Name: q.pod.Name})
			delete(g.asked, uid)
		case time.Since(q.at) > interest:
			delete(g.asked, uid)
		}
	}
	tell := slices.Clone(g.onRouted)
	g.mu.Unlock()
	for _, name := range routed {
		for _, f := range tell {
			f(name)
		}
	}
}

// settleOne lets a Pod go on when every Service shows it as terminating and every node
// has confirmed that.
func (g *Gate) settleOne(w *wait) {
	if g.waiting[w.pod.UID] != w || !w.known || len(w.listed) > 0 || len(g.c.Acks.behind(w.need)) > 0 {
		return
	}
	g.answer(w)
}

// giveUp ends a wait whose time ran out.
func (g *Gate) giveUp(w *wait) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting[w.pod.UID] != w || w.need == answered {
		return
	}
	var nodes []string
	if len(w.listed) == 0 {
		nodes = g.c.Acks.gaveUp(w.need)
	}
	g.c.Log.Warn("a Pod ends although it may still get requests", "pod", w.pod.Namespace+"/"+w.pod.Name,
		"services", slices.Collect(maps.Keys(w.listed)), "nodes", nodes)
	g.answer(w)
}

// answered is what a wait needs when only requests in flight hold it up.
const answered = ^uint64(0)

// answer waits for requests in flight, where they can be seen.
func (g *Gate) answer(w *wait) {
	w.limit.Stop()
	w.need = answered
	w.listed = nil
	if g.c.NetNS == nil {
		g.finish(w)
		return
	}
	go func() {
		g.drain(w.ctx, w.pod)
		g.end(w)
	}()
}

// drain returns when the Pod's requests in flight are answered, where they can be seen.
func (g *Gate) drain(ctx context.Context, pod *v1.Pod) {
	path, ok := g.c.NetNS(pod.UID)
	if !ok {
		return
	}
	if err := drain(ctx, path, pod.DeletionTimestamp.Add(-grace(pod)/4)); err != nil {
		g.c.Log.Warn("cannot see a Pod's requests in flight; it ends without waiting for them", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}

func (g *Gate) end(w *wait) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finish(w)
}

func (g *Gate) finish(w *wait) {
	if g.waiting[w.pod.UID] != w {
		return
	}
	delete(g.waiting, w.pod.UID)
	w.limit.Stop()
	close(w.left)
	w.cancel()
}

// IsRouted says whether every node's proxy leads to the Pod, in every Service that
// selects it. Who gets false is told by OnRouted when that changes. A Pod that no Service
// selects is routed. The caller bounds the time for which false counts: by [Limit] since
// the Pod became ready.
func (g *Gate) IsRouted(pod *v1.Pod) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	routed := g.isRouted(pod)
	if routed {
		delete(g.asked, pod.UID)
		return true
	}
	if _, before := g.asked[pod.UID]; !before {
		g.asked[pod.UID] = question{pod, time.Now()}
	}
	return false
}

func (g *Gate) isRouted(pod *v1.Pod) bool {
	if !g.c.Catalog.Complete() {
		return false
	}
	if pod.DeletionTimestamp != nil || !couldBeEndpoint(pod) {
		return true // it will never be; nobody needs to be told
	}
	for key := range g.holding(pod) {
		version, shown := g.shown[key][pod.UID]
		if !shown || len(g.c.Acks.behind(version)) > 0 {
			return false
		}
	}
	return true
}

// OnRouted calls f with each Pod for which IsRouted was false and is true now. f must not
// block.
func (g *Gate) OnRouted(f func(pod types.NamespacedName)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onRouted = append(g.onRouted, f)
}

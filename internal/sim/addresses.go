package sim

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	defaultRange   = "10.96.0.0/29"
	defaultCIDR    = "kubernetes"
	rangeFinalizer = "networking.k8s.io/service-cidr-finalizer"
	addressManager = "ipallocator.k8s.io"
	// leaveAfter is for how long a range stays that is being deleted: ten seconds, from
	// a time that is written down without its fraction.
	leaveAfter = 9 * time.Second
	// slowest is how long after its IPAddress a Service may be stored: a request has a
	// minute.
	slowest = 40 * time.Second
)

// ranges overlap in part; addresses are none of their first or last ones.
var (
	moreRanges = []string{"10.96.0.0/30", "10.96.0.0/29", "10.97.0.0/29", "10.97.0.0/30"}
	addresses  = []string{"10.96.0.1", "10.96.0.2", "10.96.0.5", "10.96.0.6", "10.97.0.1", "10.97.0.5"}
)

var addressActions = []action{
	{10, (*world).makeService}, {8, (*world).makeRange}, {5, (*world).deleteRange}, {2, (*world).forceRange}, {6, (*world).spoilRecord},
	{5, (*world).makeRecord}, {4, (*world).renameOutside},
}

var (
	aRange  = kindOf[*networking.ServiceCIDR]{serviceCIDRs}
	aRecord = kindOf[*networking.IPAddress]{ipAddresses}
)

// spoilRecord deletes an IPAddress, or takes its labels off.
func (w *world) spoilRecord() bool {
	r, ok := pick(w, aRecord, undeleted[*networking.IPAddress])
	if !ok {
		return false
	}
	if w.rng.IntN(2) == 0 {
		w.note("user deletes IPAddress %s", r.Name)
		must(w.api.delete(ipAddresses, r.Name, metav1.DeleteOptions{}))
		return true
	}
	w.note("user takes the labels off IPAddress %s", r.Name)
	change(w.api, ipAddresses, r, false, func(r *networking.IPAddress) { r.Labels = nil })
	return true
}

// makeRecord makes an IPAddress by hand: of a Service that has another address or is not
// there, or of something else, as if given with it or not.
func (w *world) makeRecord() bool {
	ip := addresses[w.rng.IntN(len(addresses))]
	if w.api.objects[ipAddresses][ip] != nil {
		return false
	}
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: []string{"web", "shop", "none"}[w.rng.IntN(3)]}}
	r := newRecord(ip, s)
	how := w.rng.IntN(4)
	if how > 1 {
		r.Spec.ParentRef.Resource = "gateways"
	}
	if how > 2 {
		r.Labels = nil
	}
	_, err := w.api.create(ipAddresses, r)
	must(err)
	w.note("user creates IPAddress %s of %s %s, labels %v", ip, r.Spec.ParentRef.Resource, keyOf(s), r.Labels)
	return true
}

func newRecord(ip string, s *v1.Service) *networking.IPAddress {
	return &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: map[string]string{
			networking.LabelIPAddressFamily: "IPv4", networking.LabelManagedBy: addressManager}},
		Spec: networking.IPAddressSpec{ParentRef: &networking.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
}

// renameOutside makes a Service one that only names something outside, which has no
// address, or gives such a one an address again.
func (w *world) renameOutside() bool {
	s, ok := pick(w, aService, func(s *v1.Service) bool {
		return undeleted(s) && s.Spec.Type != v1.ServiceTypeLoadBalancer && s.Spec.ClusterIP != v1.ClusterIPNone
	})
	if !ok {
		return false
	}
	ip := ""
	if s.Spec.Type == v1.ServiceTypeExternalName {
		if ip = w.freeAddress(); ip == "" {
			return false
		}
		_, err := w.api.create(ipAddresses, newRecord(ip, s))
		must(err)
	}
	w.note("user makes Service %s one outside, or with the address %q", keyOf(s), ip)
	change(w.api, services, s, false, func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeExternalName
		if ip != "" {
			s.Spec.Type = v1.ServiceTypeClusterIP
		}
		give(s, ip)
	})
	return true
}

func give(s *v1.Service, ip string) {
	s.Spec.ClusterIP, s.Spec.ClusterIPs = ip, []string{ip}
	if ip == "" {
		s.Spec.ClusterIPs = nil
	}
}

// freeAddress is one that the API server would give: in a range that is ready, without
// an IPAddress, and, unless it has been started anew since, of no Service. "": none.
func (w *world) freeAddress() string {
	taken := map[string]bool{}
	for _, l := range w.late {
		if s, ok := l.obj.(*v1.Service); ok {
			taken[s.Spec.ClusterIP] = true
		}
	}
	if !w.faults || w.rng.IntN(4) > 0 {
		for _, s := range listOf[*v1.Service](w.api, services) {
			taken[s.Spec.ClusterIP] = true
		}
	}
	var free []string
	for _, ip := range addresses {
		if !taken[ip] && w.api.objects[ipAddresses][ip] == nil &&
			w.isInRange(ip, func(c *networking.ServiceCIDR) bool { return undeleted(c) && isInUse(c) }) {
			free = append(free, ip)
		}
	}
	if len(free) == 0 {
		return ""
	}
	return free[w.rng.IntN(len(free))]
}

// slow is a Service whose IPAddress is stored, and that is about to be.
type slow struct {
	service *v1.Service
	by      time.Duration
}

// createAddressed creates a Service as the API server does: first the IPAddress. That may
// take a moment, which a range that is being deleted must leave it; the Service may come
// later still, or never.
func (w *world) createAddressed(s *v1.Service) bool {
	if w.api.objects[services][keyOf(s)] != nil || w.admit(services, s) != nil && w.api.admit != nil {
		return false
	}
	if s.Spec.ClusterIP == v1.ClusterIPNone {
		give(s, v1.ClusterIPNone)
		_, err := w.api.admitted(services, s)
		must(err)
		return true
	}
	ip := w.freeAddress()
	if ip == "" {
		return false
	}
	give(s, ip)
	switch n := w.rng.IntN(4); {
	case n == 0:
		w.note("user's create of Service %s is let in, with %s", keyOf(s), ip)
		w.late = append(w.late, late{res: services, obj: s, by: w.clock.passed + latest})
		return true
	case n == 1 && s.Namespace == metav1.NamespaceDefault: // which does not end
		_, err := w.api.admitted(ipAddresses, newRecord(ip, s))
		must(err)
		if w.rng.IntN(3) == 0 {
			w.note("Service %s was given %s and is never stored", keyOf(s), ip)
			return true
		}
		w.note("Service %s was given %s and is to be stored", keyOf(s), ip)
		w.slow = append(w.slow, slow{s, w.clock.passed + time.Duration(w.rng.Int64N(int64(slowest)))})
		return true
	}
	must(w.storeAddressed(s))
	return true
}

// storeAddressed stores the IPAddress of a new Service and then the Service.
func (w *world) storeAddressed(s *v1.Service) error {
	if ip := s.Spec.ClusterIP; w.profile.addresses && ip != v1.ClusterIPNone {
		if !w.isInRange(ip, func(*networking.ServiceCIDR) bool { return true }) {
			w.breach("%s of Service %s was given and lands in no range", ip, keyOf(s))
		}
		if _, err := w.api.admitted(ipAddresses, newRecord(ip, s)); err != nil {
			return err
		}
	}
	return w.storeService(s)
}

// storeService takes the IPAddress back when that fails.
func (w *world) storeService(s *v1.Service) error {
	_, err := w.api.admitted(services, s)
	if err != nil {
		w.release(s, s.Spec.ClusterIP)
	}
	return err
}

// landSlow stores the Services that must be before so much time has passed.
func (w *world) landSlow(d time.Duration) {
	w.slow = slices.DeleteFunc(w.slow, func(l slow) bool {
		if l.by > w.clock.passed+d {
			return false
		}
		w.note("Service %s is stored: %v", keyOf(l.service), w.storeService(l.service))
		return true
	})
}

// release deletes the IPAddress of an address that a Service has no more, unless the API
// server ends before it comes to that.
func (w *world) release(s *v1.Service, ip string) {
	r, ok := w.api.objects[ipAddresses][ip].(*networking.IPAddress)
	if !ok || !refersTo(r, s) {
		return
	}
	if w.faults && w.rng.IntN(4) == 0 {
		w.note("IPAddress %s is left behind", ip)
		return
	}
	caller := w.caller // it is not who does this
	w.caller = nil
	must(w.api.delete(ipAddresses, ip, metav1.DeleteOptions{}))
	w.caller = caller
}

func refersTo(r *networking.IPAddress, s *v1.Service) bool {
	ref := r.Spec.ParentRef
	return ref.Resource == "services" && ref.Namespace == s.Namespace && ref.Name == s.Name
}

func (w *world) addressesChanged(_ resource, before, after object) {
	if !w.profile.addresses {
		return
	}
	switch o := before.(type) {
	case *v1.Service:
		if now, ok := after.(*v1.Service); ok && now.Spec.ClusterIP == o.Spec.ClusterIP {
			return
		}
		w.release(o, o.Spec.ClusterIP)
	case *networking.ServiceCIDR:
		if after != nil && undeleted(o) && !undeleted(after) {
			w.leaving[o.UID] = w.clock.passed
		}
	}
}

// owners are the Services that have the address.
func (w *world) owners(ip string) map[string]bool {
	all := map[string]bool{}
	for _, s := range listOf[*v1.Service](w.api, services) {
		if s.Spec.ClusterIP == ip {
			all[keyOf(s)] = true
		}
	}
	return all
}

// isIntact says whether an IPAddress says so of a Service that has the address.
func (w *world) isIntact(r *networking.IPAddress) bool {
	ref := r.Spec.ParentRef
	return ref.Resource == "services" && w.owners(r.Name)[ref.Namespace+"/"+ref.Name] && r.Labels[networking.LabelManagedBy] == addressManager
}

// isComing says whether the Service of an IPAddress is not there yet.
func (w *world) isComing(r *networking.IPAddress) bool {
	return slices.ContainsFunc(w.slow, func(l slow) bool {
		return refersTo(r, l.service) && l.service.Spec.ClusterIP == r.Name && w.api.objects[services][keyOf(l.service)] == nil
	})
}

// records are the IPAddresses that are as they should be, and who has which address, as it
// was when a sync began.
type records struct {
	intact, coming map[types.UID]bool
	owners         map[string]map[string]bool
}

// judgeRecord checks against the truth, as it was when the sync began and as it is when
// the write takes effect.
func (l *life) judgeRecord() func(request, object) {
	w := l.w
	was := records{map[types.UID]bool{}, map[types.UID]bool{}, map[string]map[string]bool{}}
	for _, r := range listOf[*networking.IPAddress](w.api, ipAddresses) {
		was.intact[r.UID], was.coming[r.UID] = w.isIntact(r), w.isComing(r)
	}
	for _, ip := range addresses {
		was.owners[ip] = w.owners(ip)
	}
	return func(r request, target object) {
		before, isThere := target.(*networking.IPAddress)
		switch next, isNew := r.obj.(*networking.IPAddress); {
		case isNew:
			ref := next.Spec.ParentRef
			key := ref.Namespace + "/" + ref.Name
			if !was.owners[next.Name][key] && !w.owners(next.Name)[key] || next.Labels[networking.LabelManagedBy] != addressManager {
				w.breach("IPAddress %s is to be made for Service %s, which has not the address", next.Name, key)
			}
		case r.verb != "delete" || r.res != ipAddresses:
			w.breach("ipaddress: %s", r)
		case isThere:
			w.judgeLoss(before, was)
		}
	}
}

// judgeLoss checks that an IPAddress may go.
func (w *world) judgeLoss(r *networking.IPAddress, was records) {
	switch {
	case was.coming[r.UID] && w.isComing(r):
		w.mayBreach = "deletes " + r.Name + ", whose Service is about to be stored"
	case was.intact[r.UID] && w.isIntact(r):
		w.mayBreach = "deletes " + r.Name + ", whose Service has the address"
	case r.Labels[networking.LabelManagedBy] != addressManager && len(w.owners(r.Name)) == 0 && len(was.owners[r.Name]) == 0:
		w.mayBreach = "deletes " + r.Name + ", which is another's"
	}
}

// checkAddresses expects that each address of a Service has the IPAddress that says so,
// and that none says so wrongly.
func (w *world) checkAddresses() {
	if !w.profile.addresses || w.broken != "" {
		return
	}
	w.checkRanges()
	for _, ip := range addresses {
		r, _ := w.api.objects[ipAddresses][ip].(*networking.IPAddress)
		owners := slices.Sorted(maps.Keys(w.owners(ip)))
		switch isManaged := r != nil && r.Labels[networking.LabelManagedBy] == addressManager; {
		case isManaged && !w.isIntact(r):
			w.breach("IPAddress %s is said to be of %v and is of %v", ip, r.Spec.ParentRef, owners)
		case len(owners) > 0 && !isManaged && w.isInRange(ip, func(*networking.ServiceCIDR) bool { return true }):
			w.breach("the address %s of Service %v has no IPAddress", ip, owners)
		}
	}
}

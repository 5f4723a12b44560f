package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leaving says since when ServiceCIDRs have been on their way out.
type leaving map[types.UID]time.Duration

// beginAddresses: the API server makes the default range at its start.
func (w *world) beginAddresses() {
	if w.profile.addresses {
		w.addRange(defaultCIDR, defaultRange)
	}
}

func (w *world) addRange(name, text string) {
	_, err := w.api.create(serviceCIDRs, &networking.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{text}}})
	must(err)
	w.note("ServiceCIDR %s is created: %s", name, text)
}

func (w *world) makeRange() bool {
	name := fmt.Sprint("extra-", w.rng.IntN(2))
	if w.api.objects[serviceCIDRs][name] != nil {
		return false
	}
	w.addRange(name, moreRanges[w.rng.IntN(len(moreRanges))])
	return true
}

func (w *world) deleteRange() bool {
	c, ok := pick(w, aRange, undeleted[*networking.ServiceCIDR])
	if ok {
		w.note("user deletes ServiceCIDR %s", c.Name)
		must(w.api.delete(serviceCIDRs, c.Name, metav1.DeleteOptions{}))
	}
	return ok
}

// forceRange lets a user take off the finalizer of a range that does not go, but for
// those from which an address is being given.
func (w *world) forceRange() bool {
	c, ok := pick(w, aRange, func(c *networking.ServiceCIDR) bool { return !undeleted(c) })
	if ok = ok && len(w.late) == 0; ok {
		w.note("user takes the finalizers off ServiceCIDR %s", c.Name)
		change(w.api, serviceCIDRs, c, false, func(c *networking.ServiceCIDR) { c.Finalizers = nil })
	}
	return ok
}

func isInUse(c *networking.ServiceCIDR) bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, networking.ServiceCIDRConditionReady)
}

func (w *world) isInRange(ip string, fits func(*networking.ServiceCIDR) bool) bool {
	return slices.ContainsFunc(listOf[*networking.ServiceCIDR](w.api, serviceCIDRs), func(c *networking.ServiceCIDR) bool {
		return holds(c, ip) && fits(c)
	})
}

func holds(c *networking.ServiceCIDR, ip string) bool {
	return slices.ContainsFunc(c.Spec.CIDRs, func(text string) bool { return netip.MustParsePrefix(text).Contains(netip.MustParseAddr(ip)) })
}

// isBlocked says whether a range holds an address that no other would.
func isBlocked(c *networking.ServiceCIDR, all, records []object) bool {
	return slices.ContainsFunc(records, func(o object) bool {
		r := o.(*networking.IPAddress)
		return r.Labels[networking.LabelManagedBy] == addressManager && holds(c, r.Name) &&
			!slices.ContainsFunc(all, func(o object) bool {
				return o.GetName() != c.Name && undeleted(o) && holds(o.(*networking.ServiceCIDR), r.Name)
			})
	})
}

// judgeRange checks what is written about a range against what the caches showed.
func (l *life) judgeRange(key string) func(request, object) {
	w := l.w
	c, known := l.cached(serviceCIDRs, key).(*networking.ServiceCIDR)
	blocked := known && isBlocked(c, l.shown(serviceCIDRs), l.shown(ipAddresses))
	return func(r request, target object) {
		next, ok := r.obj.(*networking.ServiceCIDR)
		switch {
		case !ok || next.Name != key:
			w.breach("servicecidr (%s): %s", key, r)
		case r.verb == "create" && (key != defaultCIDR || !slices.Equal(next.Spec.CIDRs, []string{defaultRange})):
			w.breach("ServiceCIDR %s is to be made with %v", key, next.Spec.CIDRs)
		case r.verb == "updateStatus":
			if isInUse(next) != undeleted(next) || !undeleted(next) && !blocked {
				w.breach("ServiceCIDR %s is called in use or not: %v", key, next.Status.Conditions)
			}
		case target != nil && len(next.Finalizers) < len(target.GetFinalizers()):
			w.judgeEnd(target, blocked)
		}
	}
}

// judgeEnd checks that a range may go: its addresses have another one, and there was time
// for those that were being given.
func (w *world) judgeEnd(c object, blocked bool) {
	switch since := w.clock.passed - w.leaving[c.GetUID()]; {
	case blocked:
		w.breach("ServiceCIDR %s is let go of with an address that no other has", c.GetName())
	case undeleted(c):
		w.mayBreach = "lets go of " + c.GetName() + ", which nobody deletes"
	case w.jumped == 0 && since < leaveAfter:
		w.mayBreach = fmt.Sprintf("lets go of %s after %s", c.GetName(), since)
	}
}

// checkRanges expects of each range that it is in use, or on its way out and held by an
// address.
func (w *world) checkRanges() {
	if w.api.objects[serviceCIDRs][defaultCIDR] == nil {
		w.breach("the default ServiceCIDR is missing")
	}
	for _, c := range listOf[*networking.ServiceCIDR](w.api, serviceCIDRs) {
		switch blocked := isBlocked(c, w.api.all(serviceCIDRs), w.api.all(ipAddresses)); {
		case undeleted(c) != isInUse(c):
			w.breach("ServiceCIDR %s is ready or not: %v", c.Name, c.Status.Conditions)
		case undeleted(c) && !slices.Contains(c.Finalizers, rangeFinalizer):
			w.breach("ServiceCIDR %s could go at any time", c.Name)
		case !undeleted(c) && !blocked:
			w.breach("ServiceCIDR %s does not end", c.Name)
		}
	}
}

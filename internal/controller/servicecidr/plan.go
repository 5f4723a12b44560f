package servicecidr

import (
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/servicecidr"
)

const (
	// Finalizer keeps a ServiceCIDR while addresses of it are in use.
	Finalizer = "networking.k8s.io/service-cidr-finalizer"
	// leavingFor is how long a ServiceCIDR stays at least once it is being deleted.
	leavingFor = 10 * time.Second

	readyMessage       = "Kubernetes Service CIDR is ready"
	terminatingMessage = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

// Observed is one ServiceCIDR and what decides whether it may go. Nothing in it is changed
// by plan.
type Observed struct {
	// CIDR is nil if it is not there.
	CIDR *networkingv1.ServiceCIDR
	// Default is what it holds if it is the default one; else nil.
	Default *networkingv1.ServiceCIDR
	// Others are all other ServiceCIDRs, in any order; only for one that is being deleted.
	Others []*networkingv1.ServiceCIDR
	// Addresses are the names of all IPAddresses that belong to Services; as Others.
	Addresses []string
}

// Plan has at most one of Create, Update and Status. Why is for the log.
type Plan struct {
	Create, Update, Status *networkingv1.ServiceCIDR
	Recheck                time.Time
	Why                    string
}

// plan decides. The state table in doc.go is its contents.
func plan(o Observed, now time.Time) Plan {
	c := o.CIDR
	switch {
	case c == nil && o.Default == nil:
		return Plan{}
	case c == nil:
		return Plan{Create: o.Default, Why: "the default ServiceCIDR is missing"}
	case c.DeletionTimestamp != nil:
		return planEnd(o, now)
	case !slices.Contains(c.Finalizers, Finalizer):
		next := c.DeepCopy()
		next.Finalizers = append(next.Finalizers, Finalizer)
		return Plan{Update: next, Why: "addresses of it may be in use"}
	}
	return planCondition(c, metav1.Condition{Status: metav1.ConditionTrue, Message: readyMessage}, now)
}

func planEnd(o Observed, now time.Time) Plan {
	c := o.CIDR
	if !slices.Contains(c.Finalizers, Finalizer) {
		return Plan{} // somebody else's finalizer keeps it
	}
	if isBlocked(o) {
		return planCondition(c, metav1.Condition{
			Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating, Message: terminatingMessage}, now)
	}
	if at := c.DeletionTimestamp.Add(leavingFor); now.Before(at) {
		return Plan{Recheck: at}
	}
	next := c.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == Finalizer })
	return Plan{Update: next, Why: "no address of it is in use"}
}

func planCondition(c *networkingv1.ServiceCIDR, want metav1.Condition, now time.Time) Plan {
	want.Type = networkingv1.ServiceCIDRConditionReady
	have := meta.FindStatusCondition(c.Status.Conditions, want.Type)
	if have != nil && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
		return Plan{}
	}
	next := c.DeepCopy()
	want.LastTransitionTime = metav1.NewTime(now)
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(c metav1.Condition) bool { return c.Type == want.Type })
	next.Status.Conditions = append(next.Status.Conditions, want)
	return Plan{Status: next, Why: want.Message}
}

// isBlocked says whether an address would be in no range without this one. A range that is
// on its way out itself does not count.
func isBlocked(o Observed) bool {
	own, others := prefixes(o.CIDR), []netip.Prefix(nil)
	for _, other := range o.Others {
		if other.DeletionTimestamp == nil {
			others = append(others, prefixes(other)...)
		}
	}
	for _, name := range o.Addresses {
		a, err := netip.ParseAddr(name)
		if err == nil && contains(own, a) && !contains(others, a) {
			return true
		}
	}
	return false
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return servicecidr.PrefixContainsIP(p, a) })
}

func prefixes(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

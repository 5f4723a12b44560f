package ipaddress

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/servicecidr"
)

const (
	// addressManager marks the IPAddresses that come with Services.
	addressManager = "ipallocator.k8s.io"
	// lostAfter is how old an IPAddress without its Service is when nobody creates the
	// Service any more: a request has 60 s.
	lostAfter = 60 * time.Second
	// settledAfter is the same where the Service is there: it may be just getting the
	// address, or a second create of it is being taken back.
	settledAfter = 5 * time.Second
	// lookAgain is upstream's repairLoopInterval: when a Service is looked at again whose
	// address cannot be put right for now. No event of its own says when it can.
	lookAgain = 3 * time.Minute
)

// Claim is one address of a Service.
type Claim struct {
	Address string
	// Record is the IPAddress; nil if there is none.
	Record *networkingv1.IPAddress
	// Named is the Service that Record refers to; nil if it is not there.
	Named *v1.Service
}

// Action is one write. Delete comes before Create.
type Action struct {
	Delete *networkingv1.IPAddress
	Create *networkingv1.IPAddress
	Note   *Note
}

// Note is an event about the Service or IPAddress that was looked at.
type Note struct{ Reason, Message string }

// Plan is sorted as the Service's addresses are.
type Plan struct {
	Actions []Action
	Recheck time.Time
}

// planService decides about the addresses of a Service.
func planService(s *v1.Service, claims []Claim, ranges []netip.Prefix, now time.Time) Plan {
	var p Plan
	for _, c := range claims {
		a, err := netip.ParseAddr(c.Address)
		if err != nil {
			continue // "None"
		}
		action, again := planClaim(s, c, a, ranges)
		if action != (Action{}) {
			p.Actions = append(p.Actions, action)
		}
		if at := now.Add(again); again > 0 && (p.Recheck.IsZero() || at.Before(p.Recheck)) {
			p.Recheck = at
		}
	}
	return p
}

// planClaim returns the zero Action if nothing is to be done, and after how long to look
// again although nothing changed; 0: not at all.
func planClaim(s *v1.Service, c Claim, a netip.Addr, ranges []netip.Prefix) (Action, time.Duration) {
	family := familyOf(a)
	wrong := &Note{"ClusterIPNotAllocated", fmt.Sprintf("the ClusterIP [%v]: %s for Service %s/%s has a wrong reference; repairing", family, a, s.Namespace, s.Name)}
	again := time.Duration(0)
	switch {
	case !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return servicecidr.PrefixContainsIP(r, a) }):
		return Action{Note: &Note{"ClusterIPOutOfRange", fmt.Sprintf("Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", family, a)}}, lookAgain
	case c.Record == nil:
		return Action{Create: newRecord(a, s), Note: &Note{"ClusterIPNotAllocated", fmt.Sprintf("Cluster IP [%v]: %s is not allocated; repairing", family, a)}}, 0
	case !refersToService(c.Record):
		return Action{Delete: c.Record, Create: newRecord(a, s), Note: wrong}, 0
	case refersTo(c.Record, s):
	case c.Named == nil:
		return Action{Delete: c.Record, Create: newRecord(a, s), Note: wrong}, 0
	case hasAddress(c.Named, a.String()):
		return Action{Note: &Note{"ClusterIPAlreadyAllocated", fmt.Sprintf("Cluster IP [%v]:%s was assigned to multiple services; please recreate service", family, a)}}, lookAgain
	default:
		again = settledAfter // it goes by its own key, which does not wake this Service
	}
	if !isLabelled(c.Record, family) {
		return Action{Delete: c.Record, Create: newRecord(a, s)}, 0
	}
	return Action{}, again
}

// planRecord decides about an IPAddress and the Service that it refers to, or nil.
func planRecord(r *networkingv1.IPAddress, s *v1.Service, now time.Time) Plan {
	if r == nil || r.Labels[networkingv1.LabelManagedBy] != addressManager || r.DeletionTimestamp != nil {
		return Plan{}
	}
	drop := func(message string) Plan {
		reason := "IPAddressNotAllocated"
		if s != nil {
			reason = "IPAddressWrongReference"
		}
		return Plan{Actions: []Action{{Delete: r, Note: &Note{reason, message}}}}
	}
	if !refersToService(r) {
		return drop(fmt.Sprintf("IPAddress %s appears to have been modified, not referencing a Service %v: cleaning up", r.Name, r.Spec.ParentRef))
	}
	ref, patience := r.Spec.ParentRef, settledAfter
	if s != nil && hasAddress(s, r.Name) {
		return Plan{}
	}
	if s == nil || s.Spec.Type == v1.ServiceTypeExternalName {
		patience = lostAfter
	}
	if at := r.CreationTimestamp.Add(patience); !now.After(at) {
		return Plan{Recheck: at.Add(time.Millisecond)}
	}
	if s == nil {
		return drop(fmt.Sprintf("IPAddress: %s for Service %s/%s appears to have leaked: cleaning up", r.Name, ref.Namespace, ref.Name))
	}
	return drop(fmt.Sprintf("IPAddress: %s for Service %s/%s has a wrong reference; cleaning up", r.Name, s.Namespace, s.Name))
}

// hasAddress compares with the canonical form: a Service keeps the text that was asked for.
func hasAddress(s *v1.Service, record string) bool {
	return slices.ContainsFunc(s.Spec.ClusterIPs, func(ip string) bool { return recordName(ip) == record })
}

// recordName is the name of an address's IPAddress.
func recordName(ip string) string {
	if a, err := netip.ParseAddr(ip); err == nil {
		return a.String()
	}
	return ip
}

func refersToService(r *networkingv1.IPAddress) bool {
	return r.Spec.ParentRef != nil && r.Spec.ParentRef.Group == "" && r.Spec.ParentRef.Resource == "services"
}

func refersTo(r *networkingv1.IPAddress, s *v1.Service) bool {
	return r.Spec.ParentRef.Namespace == s.Namespace && r.Spec.ParentRef.Name == s.Name
}

func isLabelled(r *networkingv1.IPAddress, family v1.IPFamily) bool {
	return r.Labels[networkingv1.LabelIPAddressFamily] == string(family) && r.Labels[networkingv1.LabelManagedBy] == addressManager
}

func familyOf(a netip.Addr) v1.IPFamily {
	if a.Is4() {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

// newRecord is what the API server creates with a Service.
func newRecord(a netip.Addr, s *v1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: a.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(a)), networkingv1.LabelManagedBy: addressManager}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
}

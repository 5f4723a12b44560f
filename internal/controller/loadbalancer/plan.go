package loadbalancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

// Class is the load balancer class that means this loop, beside none.
const Class = "mend.local/node"

// excluded is upstream's label for nodes that no load balancer is to use.
const excluded = v1.LabelNodeExcludeBalancers

// Observed is what one plan is made from. Nothing in it is changed by plan.
type Observed struct {
	Service *v1.Service
	// Rivals are the other Services of this loop with a port in common, in any order.
	Rivals []*v1.Service
	Nodes  []*v1.Node
	// Slices are the Service's, for externalTrafficPolicy Local.
	Slices []*discovery.EndpointSlice
	// Reserved are the ports that the nodes themselves need.
	Reserved []int32
}

// Plan is what to do, and what to say.
type Plan struct {
	// Status is to be written; nil: leave it.
	Status *v1.ServiceStatus
	// Note becomes an event of the Service when Status is written, or Refused is new.
	Note Note
}

// Note is an event. The zero value is none.
type Note struct{ Type, Reason, Message string }

// isOurs says whether the Service gets addresses from here.
func isOurs(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer && (s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class)
}

// plan decides. The state table in doc.go is its contents.
func plan(o Observed) Plan {
	if !isOurs(o.Service) || o.Service.DeletionTimestamp != nil {
		return Plan{}
	}
	addresses, why := choose(o)
	var ingress []v1.LoadBalancerIngress
	for _, a := range addresses {
		ingress = append(ingress, v1.LoadBalancerIngress{IP: a.String(), IPMode: ptr.To(v1.LoadBalancerIPModeVIP)})
	}
	p := Plan{}
	if why != "" {
		p.Note = Note{v1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: " + why}
	}
	if apiequality.Semantic.DeepEqual(o.Service.Status.LoadBalancer.Ingress, ingress) {
		return p
	}
	status := o.Service.Status.DeepCopy()
	status.LoadBalancer.Ingress = ingress
	p.Status = status
	if why == "" {
		p.Note = Note{v1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer"}
	}
	return p
}

// choose returns the Service's addresses, sorted by family and address, or why there are
// none.
func choose(o Observed) (_ []netip.Addr, why string) {
	for _, p := range o.Service.Spec.Ports {
		if slices.Contains(o.Reserved, p.Port) {
			return nil, fmt.Sprintf("port %d is the node's own", p.Port)
		}
		for _, rival := range o.Rivals {
			if isOlder(rival, o.Service) && hasPort(rival, p) {
				return nil, fmt.Sprintf("port %d/%s is taken by Service %s/%s", p.Port, p.Protocol, rival.Namespace, rival.Name)
			}
		}
	}
	var all []netip.Addr
	for _, node := range o.Nodes {
		if serves(o, node) {
			all = append(all, addressesOf(node, o.Service.Spec.IPFamilies)...)
		}
	}
	slices.SortFunc(all, func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b)) })
	all = slices.Compact(all)
	if asked, err := netip.ParseAddr(o.Service.Spec.LoadBalancerIP); err == nil {
		if !slices.Contains(all, asked) {
			return nil, fmt.Sprintf("%s, which spec.loadBalancerIP asks for, is not the address of a node that serves this Service", asked)
		}
		return []netip.Addr{asked}, ""
	}
	return all, ""
}

func hasPort(s *v1.Service, port v1.ServicePort) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p v1.ServicePort) bool { return p.Port == port.Port && p.Protocol == port.Protocol })
}

// isOlder says whether a was there before b.
func isOlder(a, b *v1.Service) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
}

// serves says whether traffic to the node reaches the Service.
func serves(o Observed, node *v1.Node) bool {
	if _, out := node.Labels[excluded]; out || !isReady(node) {
		return false
	}
	if o.Service.Spec.ExternalTrafficPolicy != v1.ServiceExternalTrafficPolicyLocal {
		return true
	}
	for _, slice := range o.Slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName != nil && *e.NodeName == node.Name && ptr.Deref(e.Conditions.Ready, true) {
				return true
			}
		}
	}
	return false
}

func isReady(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// addressesOf are a node's addresses of these families, the first of each: an external
// one rather than an internal one.
func addressesOf(node *v1.Node, families []v1.IPFamily) []netip.Addr {
	var chosen []netip.Addr
	for _, family := range families {
		for _, kind := range []v1.NodeAddressType{v1.NodeExternalIP, v1.NodeInternalIP} {
			if a, ok := first(node, kind, family == v1.IPv6Protocol); ok {
				chosen = append(chosen, a)
				break
			}
		}
	}
	return chosen
}

func first(node *v1.Node, kind v1.NodeAddressType, six bool) (netip.Addr, bool) {
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind && ip.Is6() == six {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

package sim

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"mend/internal/controller/loadbalancer"
)

// reservedPort is the nodes' own.
const reservedPort = 6443

var balancerActions = []action{
	{8, (*world).makeService}, {10, (*world).editBalancer}, {4, (*world).spoilIngress}, {6, (*world).changeNodeUse},
	{6, (*world).deleteService}, {6, (*world).applyDeployment}, {8, (*world).scale},
}

// mayBalance makes a Service with an address one of type LoadBalancer.
func (w *world) mayBalance(s *v1.Service) {
	if !w.profile.balancers || s.Spec.ClusterIP == v1.ClusterIPNone || s.Spec.ClusterIP == "" {
		return
	}
	s.Spec.Type = v1.ServiceTypeLoadBalancer
	s.Spec.LoadBalancerClass = []*string{nil, nil, nil, nil, ptr.To(loadbalancer.Class), ptr.To("example.com/other")}[w.rng.IntN(6)]
	w.editTraffic(s)
}

func (w *world) editTraffic(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = []v1.ServiceExternalTrafficPolicy{v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal}[w.rng.IntN(2)]
	s.Spec.LoadBalancerIP = ""
	if w.rng.IntN(5) == 0 {
		s.Spec.LoadBalancerIP = fmt.Sprint("192.168.0.", w.rng.IntN(4))
	}
	s.Spec.Ports = w.servicePorts()
	if w.rng.IntN(6) == 0 {
		s.Spec.Ports[0].Port = reservedPort
	}
}

func balancerText(s *v1.Service) string {
	text := fmt.Sprintf("%s, class %q, policy %s, asks for %q, ports", s.Spec.Type, ptr.Deref(s.Spec.LoadBalancerClass, ""),
		s.Spec.ExternalTrafficPolicy, s.Spec.LoadBalancerIP)
	for _, p := range s.Spec.Ports {
		text += fmt.Sprint(" ", p.Port)
	}
	return text
}

// editBalancer changes what a Service's load balancer is to do, or whether it has one.
func (w *world) editBalancer() bool {
	s, ok := pick(w, aService, func(s *v1.Service) bool {
		return undeleted(s) && s.Spec.ClusterIP != v1.ClusterIPNone && s.Spec.Type != v1.ServiceTypeExternalName
	})
	if !ok {
		return false
	}
	change(w.api, services, s, false, func(s *v1.Service) {
		switch {
		case s.Spec.Type != v1.ServiceTypeLoadBalancer:
			w.mayBalance(s)
		case w.rng.IntN(4) == 0:
			s.Spec.Type, s.Spec.LoadBalancerClass, s.Spec.LoadBalancerIP, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeClusterIP, nil, "", ""
		default:
			w.editTraffic(s)
		}
	})
	w.note("user changes Service %s: %s", keyOf(s), balancerText(w.api.objects[services][keyOf(s)].(*v1.Service)))
	return true
}

// spoilIngress lets somebody else write the addresses of a load balancer.
func (w *world) spoilIngress() bool {
	s, ok := pick(w, aService, func(s *v1.Service) bool { return undeleted(s) && s.Spec.Type == v1.ServiceTypeLoadBalancer })
	if ok {
		change(w.api, services, s, true, func(s *v1.Service) {
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "10.9.9.9"}}
		})
		w.note("user changes the addresses of Service %s", keyOf(s))
	}
	return ok
}

// giveNodeAddress gives a node what load balancers go by: addresses, and that it is
// Ready, where no agent says so.
func (w *world) giveNodeAddress(name string) {
	if !w.profile.balancers {
		return
	}
	number := name[strings.LastIndex(name, "-")+1:]
	address := "192.168.0." + number
	if strings.HasPrefix(name, "spare") {
		address = "192.168.1." + number
	}
	change(w.api, nodes, w.api.objects[nodes][name].(*v1.Node), true, func(n *v1.Node) {
		n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeHostName, Address: name}, {Type: v1.NodeInternalIP, Address: address}}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	})
}

// changeNodeUse changes what decides whether and how a node balances load.
func (w *world) changeNodeUse() bool {
	node, ok := pick(w, aNode, undeleted[*v1.Node])
	if !ok {
		return false
	}
	how := w.rng.IntN(3)
	if how == 2 && w.profile.silence {
		how = 0 // there it is nodehealth and the agents that say whether a node is Ready
	}
	change(w.api, nodes, node, how > 0, func(n *v1.Node) {
		switch how {
		case 0:
			if _, out := n.Labels[v1.LabelNodeExcludeBalancers]; out {
				delete(n.Labels, v1.LabelNodeExcludeBalancers)
			} else {
				metav1.SetMetaDataLabel(&n.ObjectMeta, v1.LabelNodeExcludeBalancers, "")
			}
		case 1:
			if len(n.Status.Addresses) > 2 {
				n.Status.Addresses = n.Status.Addresses[:2]
			} else {
				n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeExternalIP, Address: strings.Replace(n.Status.Addresses[1].Address, "192.168.", "203.0.", 1)})
			}
		case 2:
			n.Status.Conditions[0].Status = []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown}[w.rng.IntN(3)]
		}
	})
	w.note("user changes node %s (%d: label, addresses, condition)", node.Name, how)
	return true
}

// balance is what decides about the addresses of one Service of type LoadBalancer, in
// truth or as caches have it.
type balance struct {
	service *v1.Service
	others  []object // Services
	nodes   []object
	slices  []object
}

// shown are the objects of a kind as the cache has them, in order.
func (l *life) shown(res resource) []object {
	var all []object
	for _, o := range l.factory.of[res].indexer.List() {
		all = append(all, o.(object))
	}
	slices.SortFunc(all, func(a, b object) int { return compare(keyOf(a), keyOf(b)) })
	return all
}

func balanceOf(s *v1.Service, list func(resource) []object) balance {
	return balance{service: s, others: list(services), nodes: list(nodes), slices: list(endpointSlices)}
}

func isBalanced(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer && ptr.Deref(s.Spec.LoadBalancerClass, loadbalancer.Class) == loadbalancer.Class
}

// addresses are those that the Service is to have, sorted.
func (b balance) addresses() []string {
	for _, p := range b.service.Spec.Ports {
		if p.Port == reservedPort || slices.ContainsFunc(b.others, func(o object) bool { return b.isTakenBy(p.Port, o.(*v1.Service)) }) {
			return nil
		}
	}
	var all []string
	for _, o := range b.nodes {
		ip := b.addressOf(o.(*v1.Node))
		if asked := b.service.Spec.LoadBalancerIP; ip != "" && (asked == "" || asked == ip) {
			all = append(all, ip)
		}
	}
	slices.Sort(all)
	return all
}

// addressOf is the one at which a node serves the Service; "": it does not.
func (b balance) addressOf(node *v1.Node) string {
	_, out := node.Labels[v1.LabelNodeExcludeBalancers]
	if out || !isReady(node) || b.service.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal && !b.hasEndpoint(node.Name) {
		return ""
	}
	ip := ""
	for _, a := range node.Status.Addresses {
		if a.Type == v1.NodeExternalIP || a.Type == v1.NodeInternalIP && ip == "" {
			ip = a.Address
		}
	}
	return ip
}

// isTakenBy says whether another Service has the port: it was there first.
func (b balance) isTakenBy(port int32, other *v1.Service) bool {
	s := b.service
	if other.UID == s.UID || !isBalanced(other) || other.DeletionTimestamp != nil ||
		!slices.ContainsFunc(other.Spec.Ports, func(p v1.ServicePort) bool { return p.Port == port }) {
		return false
	}
	if other.CreationTimestamp.Equal(&s.CreationTimestamp) {
		return keyOf(other) < keyOf(s)
	}
	return other.CreationTimestamp.Before(&s.CreationTimestamp)
}

func (b balance) hasEndpoint(node string) bool {
	return slices.ContainsFunc(b.slices, func(o object) bool {
		slice := o.(*discovery.EndpointSlice)
		return slice.Namespace == b.service.Namespace && slice.Labels[discovery.LabelServiceName] == b.service.Name &&
			slices.ContainsFunc(membersOf(slice), func(m member) bool { return m.node == node && m.ready })
	})
}

func ingressOf(s *v1.Service) []string {
	var all []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		all = append(all, i.IP)
	}
	slices.Sort(all)
	return all
}

// judgeBalancer checks that a Service is given the addresses that the caches told of
// when the sync began, and that no other is written.
func (l *life) judgeBalancer(key string) func(request, object) {
	s, known := l.cached(services, key).(*v1.Service)
	isOwn := known && isBalanced(s) && undeleted(s)
	var want []string
	if isOwn {
		want = balanceOf(s, l.shown).addresses()
	}
	return func(r request, _ object) {
		next, ok := r.obj.(*v1.Service)
		switch {
		case !ok || r.verb != "updateStatus" || r.key != key || !isOwn:
			l.w.breach("loadbalancer (%s): %s", key, r)
		case !slices.Equal(ingressOf(next), want):
			l.w.breach("Service %s is given %v, where the cache has %v", key, ingressOf(next), want)
		}
	}
}

// checkBalanced expects that Services have the addresses of the nodes that serve them
// now, unless their loop is about to look again, and no two the same port of one.
func (w *world) checkBalanced() {
	if !w.profile.balancers || w.broken != "" {
		return
	}
	taken := map[string]string{}
	for _, s := range listOf[*v1.Service](w.api, services) {
		have := ingressOf(s)
		if s.Spec.Type != v1.ServiceTypeLoadBalancer && len(have) > 0 {
			w.breach("Service %s is of type %s and has %v", keyOf(s), s.Spec.Type, have)
		}
		if !isBalanced(s) || !undeleted(s) || w.isWaiting("loadbalancer", keyOf(s)) {
			continue
		}
		if want := balanceOf(s, w.api.all).addresses(); !slices.Equal(have, want) {
			w.breach("Service %s (%s) has %v and should have %v", keyOf(s), balancerText(s), have, want)
		}
		for _, ip := range have {
			for _, p := range s.Spec.Ports {
				at := fmt.Sprint(ip, ":", p.Port)
				if other := taken[at]; other != "" {
					w.breach("%s belongs to Service %s and to %s", at, other, keyOf(s))
				}
				taken[at] = keyOf(s)
			}
		}
	}
}

package loadbalancer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func service(name string, age int, change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func node(name string, ready v1.ConditionStatus, addresses ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}}}
	for _, text := range addresses {
		kind := v1.NodeInternalIP
		if ip, external := strings.CutPrefix(text, "external "); external {
			kind, text = v1.NodeExternalIP, ip
		}
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: kind, Address: text})
	}
	return n
}

func base() Observed {
	return Observed{
		Service:  service("web", 0),
		Nodes:    []*v1.Node{node("b", v1.ConditionTrue, "192.0.2.2", "2001:db8::2"), node("a", v1.ConditionTrue, "192.0.2.1"), node("down", v1.ConditionUnknown, "192.0.2.3")},
		Reserved: []int32{6443},
	}
}

func local(nodeName string, ready bool) func(*Observed) {
	return func(o *Observed) {
		o.Service.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		o.Slices = []*discovery.EndpointSlice{{Endpoints: []discovery.Endpoint{{NodeName: &nodeName, Conditions: discovery.EndpointConditions{Ready: &ready}}}}}
	}
}

func TestPlans(t *testing.T) {
	const refused = "Error syncing load balancer: "
	tests := []struct {
		name string
		with func(*Observed)
		want string // addresses, or "untouched"
		note string
	}{
		{"all ready nodes", func(*Observed) {}, "192.0.2.1 192.0.2.2", "Ensured load balancer"},
		{"another type", func(o *Observed) { o.Service.Spec.Type = v1.ServiceTypeNodePort }, "untouched", ""},
		{"another class", func(o *Observed) { o.Service.Spec.LoadBalancerClass = ptr.To("other") }, "untouched", ""},
		{"our class", func(o *Observed) { o.Service.Spec.LoadBalancerClass = ptr.To(Class) }, "192.0.2.1 192.0.2.2", "Ensured load balancer"},
		{"being deleted", func(o *Observed) { o.Service.DeletionTimestamp = &metav1.Time{} }, "untouched", ""},
		{"two families", func(o *Observed) { o.Service.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol} }, "192.0.2.1 192.0.2.2 2001:db8::2", "Ensured load balancer"},
		{"an external address", func(o *Observed) {
			o.Nodes = append(o.Nodes, node("c", v1.ConditionTrue, "192.0.2.9", "external 203.0.113.9"))
		}, "192.0.2.1 192.0.2.2 203.0.113.9", "Ensured load balancer"},
		{"a node that is left out", func(o *Observed) { o.Nodes[0].Labels = map[string]string{excluded: ""} }, "192.0.2.1", "Ensured load balancer"},
		{"Local, on one node", local("a", true), "192.0.2.1", "Ensured load balancer"},
		{"Local, not ready", local("a", false), "untouched", ""},
		{"a reserved port", func(o *Observed) { o.Service.Spec.Ports[0].Port = 6443 }, "untouched", refused + "port 6443 is the node's own"},
		{"an older Service has the port", func(o *Observed) { o.Rivals = []*v1.Service{service("z", 5)} }, "untouched", refused + "port 80/TCP is taken by Service ns/z"},
		{"a younger one wants it", func(o *Observed) { o.Rivals = []*v1.Service{service("a", -5)} }, "192.0.2.1 192.0.2.2", "Ensured load balancer"},
		{"one of the same age", func(o *Observed) { o.Rivals = []*v1.Service{service("a", 0)} }, "untouched", refused + "port 80/TCP is taken by Service ns/a"},
		{"an older one has another protocol", func(o *Observed) {
			o.Rivals = []*v1.Service{service("z", 5, func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP })}
		}, "192.0.2.1 192.0.2.2", "Ensured load balancer"},
		{"an address is asked for", func(o *Observed) { o.Service.Spec.LoadBalancerIP = "192.0.2.2" }, "192.0.2.2", "Ensured load balancer"},
		{"one that no node has", func(o *Observed) { o.Service.Spec.LoadBalancerIP = "192.0.2.77" }, "untouched",
			refused + "192.0.2.77, which spec.loadBalancerIP asks for, is not the address of a node that serves this Service"},
		{"refused and still served", func(o *Observed) {
			o.Rivals = []*v1.Service{service("z", 5)}
			o.Service.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}, "", refused + "port 80/TCP is taken by Service ns/z"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := base()
			tt.with(&o)
			p := plan(o)
			got := "untouched"
			if p.Status != nil {
				var ips []string
				for _, i := range p.Status.LoadBalancer.Ingress {
					ips = append(ips, i.IP)
				}
				got = strings.Join(ips, " ")
			}
			if got != tt.want || p.Note.Message != tt.note {
				t.Errorf("got %q, %q; want %q, %q", got, p.Note.Message, tt.want, tt.note)
			}
			if p.Status != nil {
				o.Service = o.Service.DeepCopy()
				o.Service.Status = *p.Status
			}
			rand.Shuffle(len(o.Nodes), func(i, j int) { o.Nodes[i], o.Nodes[j] = o.Nodes[j], o.Nodes[i] })
			if again := plan(o); again.Status != nil {
				t.Errorf("not at rest: %v", again.Status.LoadBalancer)
			}
		})
	}
}

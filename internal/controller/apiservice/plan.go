package apiservice

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	name      = "kubernetes"
	namespace = metav1.NamespaceDefault
	portName  = "https"
	// servicePort is the Service's port, whatever the API server's own is.
	servicePort = 443
)

// Observed is all that a plan reads. Objects are nil when they do not exist.
type Observed struct {
	Service   *v1.Service
	Endpoints *v1.Endpoints
	Slice     *discovery.EndpointSlice
}

// Plan lists what to write, in this order: the Service first, so that nothing
// refers to one that does not exist.
type Plan struct {
	Service   *v1.Service
	Endpoints *v1.Endpoints
	// ReplaceSlice is the slice to delete first: its address type is wrong,
	// which cannot be changed.
	ReplaceSlice *discovery.EndpointSlice
	Slice        *discovery.EndpointSlice
}

// MakePlan compares what there is with what config asks for. An object in the
// plan without a resourceVersion is to be created, any other to be updated.
func MakePlan(o Observed, config Config) Plan {
	return Plan{Service: planService(o.Service, config), Endpoints: planEndpoints(o.Endpoints, config)}.withSlice(o.Slice, config)
}

func planService(old *v1.Service, config Config) *v1.Service {
	ports := []v1.ServicePort{{Name: portName, Protocol: v1.ProtocolTCP, Port: servicePort,
		TargetPort: intstr.FromInt32(config.Port)}}
	if old == nil {
		singleStack := v1.IPFamilyPolicySingleStack
		return &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
				Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
			Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: config.ServiceIP, Ports: ports,
				IPFamilyPolicy: &singleStack, SessionAffinity: v1.ServiceAffinityNone},
		}
	}
	if equality.Semantic.DeepEqual(old.Spec.Ports, ports) && len(old.Spec.Selector) == 0 {
		return nil
	}
	service := old.DeepCopy()
	service.Spec.Ports, service.Spec.Selector = ports, nil
	return service
}

func planEndpoints(old *v1.Endpoints, config Config) *v1.Endpoints {
	subset := v1.EndpointSubset{Ports: []v1.EndpointPort{{Name: portName, Protocol: v1.ProtocolTCP, Port: config.Port}}}
	for _, address := range config.addresses() {
		subset.Addresses = append(subset.Addresses, v1.EndpointAddress{IP: address.String()})
	}
	endpoints := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if old != nil {
		endpoints = old.DeepCopy()
	}
	if endpoints.Labels == nil {
		endpoints.Labels = map[string]string{}
	}
	endpoints.Labels[discovery.LabelSkipMirror] = "true"
	endpoints.Subsets = []v1.EndpointSubset{subset}
	if old != nil && equality.Semantic.DeepEqual(old, endpoints) {
		return nil
	}
	return endpoints
}

func (p Plan) withSlice(old *discovery.EndpointSlice, config Config) Plan {
	addresses := config.addresses()
	slice := &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
		AddressType: discovery.AddressTypeIPv4,
	}
	if addresses[0].Is6() {
		slice.AddressType = discovery.AddressTypeIPv6
	}
	switch {
	case old != nil && old.AddressType == slice.AddressType:
		slice = old.DeepCopy()
	case old != nil:
		p.ReplaceSlice = old
		old = nil
	}
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discovery.LabelServiceName] = name
	protocol, port, https, ready := v1.ProtocolTCP, config.Port, portName, true
	slice.Ports = []discovery.EndpointPort{{Name: &https, Protocol: &protocol, Port: &port}}
	slice.Endpoints = nil
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
			Addresses: []string{address.String()}, Conditions: discovery.EndpointConditions{Ready: &ready}})
	}
	if old == nil || !equality.Semantic.DeepEqual(old, slice) {
		p.Slice = slice
	}
	return p
}

// addresses are the configured ones of the first one's family, sorted: a slice
// holds one family, and the Service has one. The configuration has been checked.
func (c Config) addresses() []netip.Addr {
	var all []netip.Addr
	for _, text := range c.Addresses {
		all = append(all, netip.MustParseAddr(text).Unmap())
	}
	first := all[0]
	all = slices.DeleteFunc(all, func(a netip.Addr) bool { return a.Is6() != first.Is6() })
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

package feed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const (
	// ServiceName is the name of the cluster's DNS in kube-system, by which others know it.
	ServiceName = "kube-dns"
	managedBy   = "dns.mend.local"
)

// Publication is where one node's DNS program answers, and under which ClusterIP.
type Publication struct {
	Node      string
	ClusterIP netip.Addr
	At        netip.AddrPort
}

// Publish makes the Service kube-system/kube-dns lead to this node's program, for this
// node's Pods. It may be called as often as one likes.
func (p Publication) Publish(ctx context.Context, client kubernetes.Interface) error {
	services := client.CoreV1().Services(metav1.NamespaceSystem)
	_, err := services.Create(ctx, p.service(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		if _, getErr := services.Get(ctx, ServiceName, metav1.GetOptions{}); getErr != nil { // its address is taken: by itself?
			return fmt.Errorf("create the Service %s: %w", ServiceName, err)
		}
	}
	slices := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	want := p.slice()
	have, err := slices.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !(reflect.DeepEqual(have.Endpoints, want.Endpoints) && reflect.DeepEqual(have.Ports, want.Ports)):
		have = have.DeepCopy()
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		_, err = slices.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("publish the DNS of node %s: %w", p.Node, err)
	}
	return nil
}

func (p Publication) service() *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ServiceName, Labels: map[string]string{
			"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
		}},
		Spec: v1.ServiceSpec{
			ClusterIP: p.ClusterIP.String(), InternalTrafficPolicy: ptr.To(v1.ServiceInternalTrafficPolicyLocal),
			Ports: []v1.ServicePort{
				{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(53)},
				{Name: "dns-tcp", Protocol: v1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(53)},
			},
		},
	}
}

func (p Publication) slice() *discovery.EndpointSlice {
	family := discovery.AddressTypeIPv4
	if p.At.Addr().Is6() {
		family = discovery.AddressTypeIPv6
	}
	port := func(name string, protocol v1.Protocol) discovery.EndpointPort {
		return discovery.EndpointPort{Name: &name, Protocol: &protocol, Port: ptr.To(int32(p.At.Port()))}
	}
	sum := sha256.Sum256([]byte(p.Node))
	return &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ServiceName + "-" + hex.EncodeToString(sum[:5]), Labels: map[string]string{
			discovery.LabelServiceName: ServiceName, discovery.LabelManagedBy: managedBy,
		}},
		AddressType: family,
		Endpoints: []discovery.Endpoint{{
			Addresses: []string{p.At.Addr().String()}, NodeName: &p.Node,
			Conditions: discovery.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		}},
		Ports: []discovery.EndpointPort{port("dns", v1.ProtocolUDP), port("dns-tcp", v1.ProtocolTCP)},
	}
}

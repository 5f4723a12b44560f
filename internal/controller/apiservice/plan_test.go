package apiservice

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

var config = Config{Addresses: []string{"192.0.2.2", "192.0.2.1"}, Port: 6443}

func ptr[T any](value T) *T { return &value }

// wanted is the three objects as config asks for, as if stored.
func wanted() Observed {
	return Observed{
		Service: &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", ResourceVersion: "1",
				Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
			Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", SessionAffinity: v1.ServiceAffinityNone,
				IPFamilyPolicy: ptr(v1.IPFamilyPolicySingleStack),
				Ports:          []v1.ServicePort{{Name: "https", Protocol: v1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(6443)}}},
		},
		Endpoints: &v1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", ResourceVersion: "1",
				Labels: map[string]string{"endpointslice.kubernetes.io/skip-mirror": "true"}},
			Subsets: []v1.EndpointSubset{{
				Addresses: []v1.EndpointAddress{{IP: "192.0.2.1"}, {IP: "192.0.2.2"}},
				Ports:     []v1.EndpointPort{{Name: "https", Protocol: v1.ProtocolTCP, Port: 6443}}}},
		},
		Slice: &discovery.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", ResourceVersion: "1",
				Labels: map[string]string{"kubernetes.io/service-name": "kubernetes"}},
			AddressType: discovery.AddressTypeIPv4,
			Ports:       []discovery.EndpointPort{{Name: ptr("https"), Protocol: ptr(v1.ProtocolTCP), Port: ptr(int32(6443))}},
			Endpoints: []discovery.Endpoint{
				{Addresses: []string{"192.0.2.1"}, Conditions: discovery.EndpointConditions{Ready: ptr(true)}},
				{Addresses: []string{"192.0.2.2"}, Conditions: discovery.EndpointConditions{Ready: ptr(true)}}},
		},
	}
}

func TestPlan(t *testing.T) {
	made := wanted()
	made.Service.ResourceVersion, made.Service.Spec.ClusterIP = "", ""
	made.Endpoints.ResourceVersion, made.Slice.ResourceVersion = "", ""
	for sentence, tc := range map[string]struct {
		changed func(o *Observed)
		want    func(p *Plan)
	}{
		"at rest nothing is done": {func(*Observed) {}, func(*Plan) {}},
		"all is made from nothing": {func(o *Observed) { *o = Observed{} },
			func(p *Plan) { *p = Plan{Service: made.Service, Endpoints: made.Endpoints, Slice: made.Slice} }},
		"a moved port is followed, the address kept": {
			func(o *Observed) { o.Service.Spec.Ports[0].TargetPort = intstr.FromInt32(7443) },
			func(p *Plan) { p.Service = wanted().Service }},
		"labels that people add stay": {
			func(o *Observed) {
				o.Service.Labels["mine"], o.Endpoints.Labels["mine"], o.Slice.Labels["mine"] = "x", "x", "x"
			}, func(*Plan) {}},
		"another address in Endpoints is put right": {
			func(o *Observed) { o.Endpoints.Subsets[0].Addresses[0].IP = "192.0.2.9" },
			func(p *Plan) { p.Endpoints = wanted().Endpoints }},
		"a slice for mirroring is asked not to be made": {
			func(o *Observed) { o.Endpoints.Labels = nil }, func(p *Plan) { p.Endpoints = wanted().Endpoints }},
		"a slice without its Service is given it": {
			func(o *Observed) { o.Slice.Labels = nil }, func(p *Plan) { p.Slice = wanted().Slice }},
		"a slice of the other address type is replaced": {
			func(o *Observed) { o.Slice.AddressType = discovery.AddressTypeIPv6 },
			func(p *Plan) {
				p.ReplaceSlice = wanted().Slice
				p.ReplaceSlice.AddressType = discovery.AddressTypeIPv6
				p.Slice = made.Slice
			}},
	} {
		t.Run(sentence, func(t *testing.T) {
			observed, want := wanted(), Plan{}
			tc.changed(&observed)
			tc.want(&want)
			if diff := cmp.Diff(want, MakePlan(observed, config)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// Addresses in any order, some twice, give the same plan, of one family.
func TestAddressesInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addresses := rapid.Permutation([]string{"192.0.2.2", "192.0.2.1", "192.0.2.1", "::ffff:192.0.2.2"}).Draw(t, "addresses")
		addresses = append(addresses, "2001:db8::1")
		if diff := cmp.Diff(Plan{}, MakePlan(wanted(), Config{Addresses: addresses, Port: 6443})); diff != "" {
			t.Fatalf("not at rest:\n%s", diff)
		}
	})
}

func TestBadConfigurationIsNamed(t *testing.T) {
	for want, bad := range map[string]Config{
		"Addresses: at least one":   {Port: 1},
		"Addresses[1]: ":            {Addresses: []string{"192.0.2.1", "here"}, Port: 1},
		"Addresses[0]: Pods cannot": {Addresses: []string{"127.0.0.1"}, Port: 1},
		"Port: 0":                   {Addresses: []string{"192.0.2.1"}},
		"ServiceIP: ":               {Addresses: []string{"192.0.2.1"}, Port: 1, ServiceIP: "x"},
	} {
		if err := bad.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := config.check(); err != nil {
		t.Error(err)
	}
}

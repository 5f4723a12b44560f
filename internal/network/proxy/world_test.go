package proxy

import (
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"mend/internal/network/catalog"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// here is the node of the tests: Pods in 10.42.0.0/24 and fd42::/64, Services in
// 10.43.0.0/16 and fd43::/112, addresses 198.18.0.1 and 2001:db8::1.
var here = Config{
	Bridge:     "pods",
	InstanceID: "abcdef", NodeName: "here", Zone: "a", Families: []Family{IPv4, IPv6},
	PodRanges:     []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24"), netip.MustParsePrefix("fd42::/64")},
	ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")},
	NodeAddrs:     []netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8::1")},
	Log:           slog.New(slog.DiscardHandler),
}

// web is a Service ns/web with port 80 → 8080 at 10.43.0.10.
func web(change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.43.0.10", ClusterIPs: []string{"10.43.0.10"},
			Ports:           []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80}},
			SessionAffinity: v1.ServiceAffinityNone, InternalTrafficPolicy: ptr.To(v1.ServiceInternalTrafficPolicyCluster),
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func nodePort(n int32) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, n
		s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
	}
}

func loadBalancer(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyCluster
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
		}
	}
}

func externalIPs(ips ...string) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.ExternalIPs, s.Spec.ExternalTrafficPolicy = ips, v1.ServiceExternalTrafficPolicyCluster
	}
}

func externalLocal(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *v1.Service) {
	s.Spec.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyLocal)
}

func sticky(seconds int32) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func protocolOf(p v1.Protocol) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.Ports[0].Protocol = p }
}

// ep writes an endpoint as "address[@node][ ending][ unready][ zone=z][ for=node]".
func ep(text string) discovery.Endpoint {
	words := strings.Fields(text)
	addr, node, _ := strings.Cut(words[0], "@")
	e := discovery.Endpoint{Addresses: []string{addr}, Conditions: discovery.EndpointConditions{
		Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)}}
	if node != "" {
		e.NodeName = &node
	}
	for _, w := range words[1:] {
		switch name, value, _ := strings.Cut(w, "="); name {
		case "ending":
			e.Conditions.Ready, e.Conditions.Terminating = ptr.To(false), ptr.To(true)
		case "unready":
			e.Conditions.Ready, e.Conditions.Serving = ptr.To(false), ptr.To(false)
		case "zone":
			e.Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: value}}}
		case "for":
			e.Hints = &discovery.EndpointHints{ForNodes: []discovery.ForNode{{Name: value}}}
		}
	}
	return e
}

// slice holds endpoints at port 8080 of the unnamed port, in the family of the first.
func slice(protocol v1.Protocol, endpoints ...string) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "web-" + strings.ToLower(string(protocol)), Labels: map[string]string{discovery.LabelServiceName: "web"}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: ptr.To(""), Protocol: &protocol, Port: ptr.To[int32](8080)}},
	}
	for _, text := range endpoints {
		s.Endpoints = append(s.Endpoints, ep(text))
		if strings.Contains(strings.Fields(text)[0], ":") {
			s.AddressType = discovery.AddressTypeIPv6
		}
	}
	return s
}

func behind(s *v1.Service, endpoints ...string) catalog.Service {
	return catalog.Service{Object: s, Slices: []*discovery.EndpointSlice{slice(s.Spec.Ports[0].Protocol, endpoints...)}}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), rewrite with -update:\n%s", path, diff)
	}
}

// cases are Services for which goldens exist.
var cases = []struct {
	name    string
	service catalog.Service
}{
	{"cluster-ip", behind(web(), "10.42.0.2@here", "10.42.1.2@there", "10.42.1.3@there unready")},
	{"no-endpoints", behind(web(nodePort(30080), externalIPs("203.0.113.1")), "10.42.0.2@here unready")},
	{"only-ending-endpoints", behind(web(), "10.42.0.2@here ending", "10.42.1.2@there ending")},
	{"internal-local", behind(web(internalLocal), "10.42.0.2@here", "10.42.1.2@there")},
	{"internal-local-elsewhere", behind(web(internalLocal), "10.42.1.2@there")},
	{"node-port", behind(web(nodePort(30080)), "10.42.0.2@here", "10.42.1.2@there")},
	{"external-local", behind(web(nodePort(30080), externalIPs("203.0.113.1"), externalLocal), "10.42.0.2@here", "10.42.1.2@there")},
	{"external-local-elsewhere", behind(web(nodePort(30080), externalLocal), "10.42.1.2@there")},
	{"load-balancer", behind(web(loadBalancer("198.18.0.1"), nodePort(30080), loadBalancer(), externalLocal, func(s *v1.Service) {
		s.Spec.HealthCheckNodePort = 32000
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", " 198.18.0.0/24", "198.51.100.128/25", "2001:db8::/32"}
	}), "10.42.0.2@here", "10.42.1.2@there")},
	{"load-balancer-for-all", behind(web(loadBalancer("198.18.0.1"), func(s *v1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "0.0.0.0/0"}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: "198.18.0.9", IPMode: ptr.To(v1.LoadBalancerIPModeProxy)})
	}), "10.42.0.2@here")},
	{"sticky", behind(web(nodePort(30080), sticky(60)), "10.42.0.2@here", "10.42.1.2@there")},
	{"udp", behind(web(protocolOf(v1.ProtocolUDP), nodePort(30053)), "10.42.0.2@here", "10.42.1.2@there ending", "10.42.1.3@there unready")},
	{"sctp", behind(web(protocolOf(v1.ProtocolSCTP)), "10.42.0.2@here")},
	{"same-zone", behind(web(), "10.42.0.2@here zone=a", "10.42.1.2@there zone=b", "10.42.1.3@there zone=a")},
	{"same-node", behind(web(), "10.42.0.2@here for=here", "10.42.1.2@there for=there")},
	{"a-hint-is-missing", behind(web(), "10.42.0.2@here zone=a", "10.42.1.2@there")},
	{"dual-stack", catalog.Service{Object: web(nodePort(30080), func(s *v1.Service) { s.Spec.ClusterIPs = []string{"10.43.0.10", "fd43::a"} }),
		Slices: []*discovery.EndpointSlice{slice(v1.ProtocolTCP, "10.42.0.2@here"), slice(v1.ProtocolTCP, "fd42::2@here", "fd42:0:0:1::2@there")}}},
	{"several-ports", severalPorts()},
	{"headless", behind(web(func(s *v1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = v1.ClusterIPNone, []string{v1.ClusterIPNone}
	}), "10.42.0.2@here")},
	{"other-proxy", behind(web(func(s *v1.Service) { s.Labels = map[string]string{labelServiceProxyName: "other"} }), "10.42.0.2@here")},
	{"slices-without-service", catalog.Service{Slices: []*discovery.EndpointSlice{slice(v1.ProtocolTCP, "10.42.0.2@here")}}},
}

func severalPorts() catalog.Service {
	s := web(func(s *v1.Service) {
		s.Spec.Ports = []v1.ServicePort{
			{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}, {Name: "dns", Protocol: v1.ProtocolTCP, Port: 53}, {Name: "dns-udp", Protocol: v1.ProtocolUDP, Port: 53},
		}
	})
	one := slice(v1.ProtocolTCP, "10.42.0.2@here", "10.42.0.3@here")
	one.Ports = []discovery.EndpointPort{
		{Name: ptr.To("http"), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To[int32](8080)},
		{Name: ptr.To("dns-udp"), Protocol: ptr.To(v1.ProtocolUDP), Port: ptr.To[int32](1053)},
	}
	// A Pod that has another number for the port named "web".
	two := slice(v1.ProtocolTCP, "10.42.1.4@there")
	two.Name, two.Ports = "web-two", []discovery.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To[int32](9090)}}
	return catalog.Service{Object: s, Slices: []*discovery.EndpointSlice{one, two}}
}

func TestRenderings(t *testing.T) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) { compareGolden(t, tt.name, render(here, tt.service).String()) })
	}
}

// The whole table, with the chains of the classes in use.
func TestTable(t *testing.T) {
	l := newLedger()
	all := map[catalog.Key]Rendering{}
	for i, name := range []string{"dual-stack", "sticky", "external-local"} {
		for _, tt := range cases {
			if tt.name == name {
				s := tt.service.Object.DeepCopy()
				s.Spec.ClusterIP = fmt.Sprintf("10.43.0.%d", 10+i)
				s.Spec.ClusterIPs[0], s.Spec.Ports[0].NodePort = s.Spec.ClusterIP, int32(30080+i)
				all[catalog.Key{Namespace: "ns", Name: name}] = render(here, catalog.Service{Object: s, Slices: tt.service.Slices})
			}
		}
	}
	l.change(all)
	compareGolden(t, "table", l.string(here))
}

package ipaddress

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func service(name string, addresses ...string) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIPs: addresses}}
}

func made(address, service string, change ...func(*networkingv1.IPAddress)) *networkingv1.IPAddress {
	family := "IPv4"
	if netip.MustParseAddr(address).Is6() {
		family = "IPv6"
	}
	r := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: address, Labels: map[string]string{
			"ipaddress.kubernetes.io/ip-family": family, "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "shop", Name: service}},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func aged(d time.Duration) func(*networkingv1.IPAddress) {
	return func(r *networkingv1.IPAddress) { r.CreationTimestamp = metav1.NewTime(now.Add(-d)) }
}

func TestPlanService(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.7.0.0/24"), netip.MustParsePrefix("fd00::/112")}
	web, other := service("web", "10.7.0.5", "fd00::5"), service("other", "10.7.0.5")
	podRef := func(r *networkingv1.IPAddress) { r.Spec.ParentRef.Resource = "pods" }
	unlabelled := func(r *networkingv1.IPAddress) { r.Labels = nil }
	wrong := &Note{"ClusterIPNotAllocated", "the ClusterIP [IPv4]: 10.7.0.5 for Service shop/web has a wrong reference; repairing"}
	tests := []struct {
		name   string
		claims []Claim
		want   Plan
	}{
		{"both families are as they should be", []Claim{{"10.7.0.5", made("10.7.0.5", "web"), web}, {"fd00::5", made("fd00::5", "web"), web}}, Plan{}},
		{"a headless one has none", []Claim{{Address: "None"}}, Plan{}},
		{"one that is missing is made", []Claim{{Address: "fd00::5"}}, Plan{Actions: []Action{{Create: made("fd00::5", "web"),
			Note: &Note{"ClusterIPNotAllocated", "Cluster IP [IPv6]: fd00::5 is not allocated; repairing"}}}}},
		{"the text of an address may have another form", []Claim{{"fd00:0::5", made("fd00::5", "web"), web}}, Plan{}},
		{"one that refers to something else is made anew", []Claim{{"10.7.0.5", made("10.7.0.5", "web", podRef), nil}},
			Plan{Actions: []Action{{Delete: made("10.7.0.5", "web", podRef), Create: made("10.7.0.5", "web"), Note: wrong}}}},
		{"one of a Service that is gone is made anew", []Claim{{"10.7.0.5", made("10.7.0.5", "gone"), nil}},
			Plan{Actions: []Action{{Delete: made("10.7.0.5", "gone"), Create: made("10.7.0.5", "web"), Note: wrong}}}},
		{"one of another Service with the address stays, is told and looked at again", []Claim{{"10.7.0.5", made("10.7.0.5", "other"), other}},
			Plan{Actions: []Action{{Note: &Note{"ClusterIPAlreadyAllocated", "Cluster IP [IPv4]:10.7.0.5 was assigned to multiple services; please recreate service"}}}, Recheck: now.Add(3 * time.Minute)}},
		{"one of another Service, which has not the address, goes by itself; then this one is looked at again",
			[]Claim{{"10.7.0.5", made("10.7.0.5", "other"), service("other", "10.7.0.6")}}, Plan{Recheck: now.Add(5 * time.Second)}},
		{"one without labels is made anew", []Claim{{"10.7.0.5", made("10.7.0.5", "web", unlabelled), web}},
			Plan{Actions: []Action{{Delete: made("10.7.0.5", "web", unlabelled), Create: made("10.7.0.5", "web")}}}},
		{"an address outside all ranges is told, and looked at again", []Claim{{Address: "10.8.0.5"}},
			Plan{Actions: []Action{{Note: &Note{"ClusterIPOutOfRange", "Cluster IP [IPv4]: 10.8.0.5 is not within any configured Service CIDR; please recreate service"}}}, Recheck: now.Add(3 * time.Minute)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, planService(web, tt.claims, ranges, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanRecord(t *testing.T) {
	name := service("web")
	name.Spec.Type = v1.ServiceTypeExternalName
	foreign := func(r *networkingv1.IPAddress) { r.Labels["ipaddress.kubernetes.io/managed-by"] = "somebody" }
	podRef := func(r *networkingv1.IPAddress) { r.Spec.ParentRef.Resource = "pods" }
	drop := func(r *networkingv1.IPAddress, reason, message string) Plan {
		return Plan{Actions: []Action{{Delete: r, Note: &Note{reason, message}}}}
	}
	tests := []struct {
		name    string
		record  *networkingv1.IPAddress
		service *v1.Service
		want    Plan
	}{
		{"one that is gone", nil, nil, Plan{}},
		{"one of a Service that has the address", made("10.7.0.5", "web", aged(time.Hour)), service("web", "10.7.0.5"), Plan{}},
		{"somebody else's is left alone", made("10.7.0.5", "web", aged(time.Hour), foreign), nil, Plan{}},
		{"the Service may be just being created", made("10.7.0.5", "web", aged(time.Minute)), nil, Plan{Recheck: now.Add(time.Millisecond)}},
		{"after a minute it will not come any more", made("10.7.0.5", "web", aged(time.Minute+time.Second)), nil,
			drop(made("10.7.0.5", "web", aged(time.Minute+time.Second)), "IPAddressNotAllocated", "IPAddress: 10.7.0.5 for Service shop/web appears to have leaked: cleaning up")},
		{"the Service may be just getting it", made("10.7.0.5", "web", aged(time.Second)), service("web", "10.7.0.6"), Plan{Recheck: now.Add(4*time.Second + time.Millisecond)}},
		{"a Service that has another address", made("10.7.0.5", "web", aged(10*time.Second)), service("web", "10.7.0.6"),
			drop(made("10.7.0.5", "web", aged(10*time.Second)), "IPAddressWrongReference", "IPAddress: 10.7.0.5 for Service shop/web has a wrong reference; cleaning up")},
		{"a name only may be becoming more", made("10.7.0.5", "web", aged(10*time.Second)), name, Plan{Recheck: now.Add(50*time.Second + time.Millisecond)}},
		{"one that refers to a Pod", made("10.7.0.5", "web", aged(0), podRef), nil,
			drop(made("10.7.0.5", "web", aged(0), podRef), "IPAddressNotAllocated",
				"IPAddress 10.7.0.5 appears to have been modified, not referencing a Service &ParentReference{Group:,Resource:pods,Namespace:shop,Name:web,}: cleaning up")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.record.DeepCopy()
			if diff := cmp.Diff(tt.want, planRecord(tt.record, tt.service, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.record); diff != "" {
				t.Errorf("the plan changed its input:\n%s", diff)
			}
		})
	}
}

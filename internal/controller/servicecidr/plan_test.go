package servicecidr

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func cidr(name string, change func(*networkingv1.ServiceCIDR), ranges ...string) *networkingv1.ServiceCIDR {
	c := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{Finalizer}},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: ranges},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{
			{Type: "Ready", Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready"}}},
	}
	if change != nil {
		change(c)
	}
	return c
}

func TestPlan(t *testing.T) {
	deletedFor := func(d time.Duration) func(*networkingv1.ServiceCIDR) {
		return func(c *networkingv1.ServiceCIDR) { c.DeletionTimestamp = &metav1.Time{Time: now.Add(-d)} }
	}
	unready := func(c *networkingv1.ServiceCIDR) {
		deletedFor(time.Minute)(c)
		c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Terminating",
			Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR", LastTransitionTime: metav1.NewTime(now)}}
	}
	free := func(c *networkingv1.ServiceCIDR) { deletedFor(time.Minute)(c); c.Finalizers = []string{} }
	wide := cidr("wide", nil, "10.0.0.0/8", "fd00::/64")
	preset := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.7.0.0/24"}}}
	tests := []struct {
		name string
		in   Observed
		want Plan
	}{
		{"one that is gone needs nothing", Observed{}, Plan{}},
		{"the default one is made anew", Observed{Default: preset}, Plan{Create: preset, Why: "the default ServiceCIDR is missing"}},
		{"a new one gets the finalizer", Observed{CIDR: cidr("a", func(c *networkingv1.ServiceCIDR) { c.Finalizers = nil }, "10.7.0.0/24")},
			Plan{Update: cidr("a", nil, "10.7.0.0/24"), Why: "addresses of it may be in use"}},
		{"one with the finalizer becomes ready", Observed{CIDR: cidr("a", func(c *networkingv1.ServiceCIDR) { c.Status.Conditions = nil }, "10.7.0.0/24")},
			Plan{Status: cidr("a", func(c *networkingv1.ServiceCIDR) { c.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now) }, "10.7.0.0/24"),
				Why: readyMessage}},
		{"a ready one is left alone", Observed{CIDR: cidr("a", nil, "10.7.0.0/24")}, Plan{}},
		{"one that is deleted stays for ten seconds", Observed{CIDR: cidr("a", deletedFor(4*time.Second), "10.7.0.0/24")}, Plan{Recheck: now.Add(6 * time.Second)}},
		{"then it goes", Observed{CIDR: cidr("a", deletedFor(time.Minute), "10.7.0.0/24")},
			Plan{Update: cidr("a", free, "10.7.0.0/24"), Why: "no address of it is in use"}},
		{"an address of it keeps it", Observed{CIDR: cidr("a", deletedFor(time.Minute), "10.7.0.0/24"), Addresses: []string{"10.7.0.9"}},
			Plan{Status: cidr("a", unready, "10.7.0.0/24"), Why: terminatingMessage}},
		{"an IPv6 address keeps it too", Observed{CIDR: cidr("a", unready, "10.7.0.0/24", "fd00::/112"), Addresses: []string{"fd00::9"}}, Plan{}},
		{"an address outside does not", Observed{CIDR: cidr("a", deletedFor(time.Second), "10.7.0.0/24"), Addresses: []string{"10.8.0.9", "fd00::9"}},
			Plan{Recheck: now.Add(9 * time.Second)}},
		{"nor one that another range holds", Observed{CIDR: cidr("a", deletedFor(time.Second), "10.7.0.0/24", "fd00::/112"),
			Others: []*networkingv1.ServiceCIDR{wide}, Addresses: []string{"10.7.0.9", "fd00::9"}}, Plan{Recheck: now.Add(9 * time.Second)}},
		{"but a range on its way out holds nothing", Observed{CIDR: cidr("a", unready, "10.7.0.0/24"),
			Others: []*networkingv1.ServiceCIDR{cidr("wide", deletedFor(time.Second), "10.0.0.0/8")}, Addresses: []string{"10.7.0.9"}}, Plan{}},
		{"another's finalizer is not ours to wait for", Observed{CIDR: cidr("a", func(c *networkingv1.ServiceCIDR) {
			deletedFor(time.Minute)(c)
			c.Finalizers = []string{"example.com/x"}
		}, "10.7.0.0/24"), Addresses: []string{"10.7.0.9"}}, Plan{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.in.CIDR.DeepCopy()
			if diff := cmp.Diff(tt.want, plan(tt.in, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.in.CIDR); diff != "" {
				t.Errorf("the plan changed its input:\n%s", diff)
			}
		})
	}
}

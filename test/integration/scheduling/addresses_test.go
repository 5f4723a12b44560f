package scheduling

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"mend/internal/controller/ipaddress"
	"mend/internal/controller/servicecidr"
	"mend/internal/testkit"
)

// cidrIs waits until the ServiceCIDR has the finalizer and this condition.
func (w *world) cidrIs(name string, want metav1.ConditionStatus, message string) *networkingv1.ServiceCIDR {
	w.Helper()
	var found *networkingv1.ServiceCIDR
	testkit.WaitFor(w, "ServiceCIDR "+name, func() (err error) {
		if found, err = w.client.NetworkingV1().ServiceCIDRs().Get(w.ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(found.Status.Conditions, "Ready")
		if len(found.Finalizers) != 1 || found.Finalizers[0] != servicecidr.Finalizer || ready == nil || ready.Status != want || ready.Message != message {
			return fmt.Errorf("finalizers %v, condition %v", found.Finalizers, ready)
		}
		return nil
	})
	return found
}

const readyCIDR = "Kubernetes Service CIDR is ready"

func TestAServiceCIDRGoesWhenNoAddressOfItIsInUse(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, clock, servicecidr.Declaration("10.96.0.0/12"))
	cidrs, services := w.client.NetworkingV1().ServiceCIDRs(), w.client.CoreV1().Services("default")
	w.cidrIs("kubernetes", metav1.ConditionTrue, readyCIDR)

	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.200.0.0/24"}}}
	must(cidrs.Create(w.ctx, more, metav1.CreateOptions{}))(t)
	w.cidrIs("more", metav1.ConditionTrue, readyCIDR)
	web := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ServiceSpec{ClusterIP: "10.200.0.7", Ports: []v1.ServicePort{{Port: 80}}}}
	must(services.Create(w.ctx, web, metav1.CreateOptions{}))(t)
	if err := cidrs.Delete(w.ctx, "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.cidrIs("more", metav1.ConditionFalse, "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR")
	web.Name, web.Spec.ClusterIP = "late", "10.200.0.8"
	if _, err := services.Create(w.ctx, web, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "failed to allocate IP 10.200.0.8: the provided network does not match the current range") {
		t.Errorf("an address of it: %v", err)
	}

	if err := services.Delete(w.ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the ServiceCIDR to go", func() error {
		clock.Step(11 * time.Second) // it waits for ten
		_, err := cidrs.Get(w.ctx, "more", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

func TestTheDefaultServiceCIDRStaysWhileKubernetesHasItsAddress(t *testing.T) {
	w := newWorld(t, clock.RealClock{}, servicecidr.Declaration("10.96.0.0/12"))
	w.cidrIs("kubernetes", metav1.ConditionTrue, readyCIDR)
	must(w.client.CoreV1().Services("default").Create(w.ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{}))(t)
	if err := w.client.NetworkingV1().ServiceCIDRs().Delete(w.ctx, "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := w.cidrIs("kubernetes", metav1.ConditionFalse, "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR")
	// Another range with the same addresses frees it; ten seconds later it goes, and comes again.
	same := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "same"}, Spec: gone.Spec}
	must(w.client.NetworkingV1().ServiceCIDRs().Create(w.ctx, same, metav1.CreateOptions{}))(t)
	testkit.WaitFor(t, "the default ServiceCIDR to be made anew", func() error {
		now, err := w.client.NetworkingV1().ServiceCIDRs().Get(w.ctx, "kubernetes", metav1.GetOptions{})
		if err == nil && now.UID == gone.UID {
			err = errors.New("it is the old one")
		}
		return err
	})
	w.cidrIs("kubernetes", metav1.ConditionTrue, readyCIDR)
}

func TestIPAddressesAreRepaired(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, clock, ipaddress.Declaration(), servicecidr.Declaration("10.96.0.0/12"))
	web := must(w.client.CoreV1().Services("default").Create(w.ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}))(t)
	addresses := w.client.NetworkingV1().IPAddresses()
	if err := addresses.Delete(w.ctx, web.Spec.ClusterIP, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the IPAddress to come again", func() error {
		r, err := addresses.Get(w.ctx, web.Spec.ClusterIP, metav1.GetOptions{})
		if err == nil && r.Spec.ParentRef.Name != "web" {
			err = fmt.Errorf("it is for %v", r.Spec.ParentRef)
		}
		return err
	})
	testkit.WaitFor(t, "an event about it", func() error {
		events, err := w.client.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
		if err == nil && (len(events.Items) != 1 || events.Items[0].Reason != "ClusterIPNotAllocated" ||
			events.Items[0].Message != "Cluster IP [IPv4]: "+web.Spec.ClusterIP+" is not allocated; repairing") {
			err = fmt.Errorf("%v", events.Items)
		}
		return err
	})
	// What a crash between an IPAddress and its Service leaves behind.
	leak := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.9.9", Labels: map[string]string{
		networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io"}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "never"}}}
	must(addresses.Create(w.ctx, leak, metav1.CreateOptions{}))(t)
	mine := leak.DeepCopy()
	mine.Name, mine.Labels = "10.96.9.10", nil
	must(addresses.Create(w.ctx, mine, metav1.CreateOptions{}))(t)
	testkit.WaitFor(t, "the IPAddress that leaked to go", func() error {
		clock.Step(31 * time.Second)
		_, err := addresses.Get(w.ctx, leak.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
	for _, name := range []string{mine.Name, web.Spec.ClusterIP} {
		must(addresses.Get(w.ctx, name, metav1.GetOptions{}))(t)
	}
}

package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"mend/internal/apiserver"
	"mend/internal/testkit"
)

func withRanges(ranges string) testkit.Option {
	return func(_ testing.TB, c *apiserver.Config) { c.ServiceClusterIPRange = ranges }
}

// records are the IPAddresses, each with the Service it is for.
func records(t *testing.T, client kubernetes.Interface) map[string]string {
	t.Helper()
	list := must[*networkingv1.IPAddressList](t)(client.NetworkingV1().IPAddresses().List(testContext(t), metav1.ListOptions{}))
	found := map[string]string{}
	for _, r := range list.Items {
		found[r.Name] = r.Spec.ParentRef.Resource + " " + r.Spec.ParentRef.Namespace + "/" + r.Spec.ParentRef.Name + " " + r.Labels[networkingv1.LabelIPAddressFamily]
	}
	return found
}

func TestAnIPAddressIsThereAsLongAsItsService(t *testing.T) {
	s := testkit.StartAPIServer(t, withRanges("10.7.0.0/24,fd00:7::/112"))
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	dual := service("dual")
	dual.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	made := must[*corev1.Service](t)(services.Create(ctx, dual, metav1.CreateOptions{}))
	found := records(t, s.Client)
	if len(found) != 2 || found[made.Spec.ClusterIPs[0]] != "services default/dual IPv4" || found[made.Spec.ClusterIPs[1]] != "services default/dual IPv6" {
		t.Errorf("IPAddresses of %v: %v", made.Spec.ClusterIPs, found)
	}
	if _, err := services.Create(ctx, dual, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) || len(records(t, s.Client)) != 2 {
		t.Errorf("created again: %v, %v", err, records(t, s.Client))
	}
	ok(t, services.Delete(ctx, "dual", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
	if len(records(t, s.Client)) != 2 {
		t.Error("a dry run gave addresses away")
	}
	ok(t, services.Delete(ctx, "dual", metav1.DeleteOptions{}))
	if found := records(t, s.Client); len(found) != 0 {
		t.Errorf("left: %v", found)
	}
}

func TestAServiceGoesBetweenOneFamilyAndTwo(t *testing.T) {
	s := testkit.StartAPIServer(t, withRanges("10.7.0.0/24,fd00:7::/112"))
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	first := must[*corev1.Service](t)(services.Create(ctx, service("web"), metav1.CreateOptions{}))
	if got := fmt.Sprintln(first.Spec.IPFamilies, *first.Spec.IPFamilyPolicy, len(first.Spec.ClusterIPs)); got != "[IPv4] SingleStack 1\n" {
		t.Errorf("by default: %s", got)
	}
	got := must[*corev1.Service](t)(patchService(t, s, `{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`))
	if fmt.Sprint(got.Spec.IPFamilies) != "[IPv4 IPv6]" || len(got.Spec.ClusterIPs) != 2 || got.Spec.ClusterIPs[0] != first.Spec.ClusterIP || !strings.HasPrefix(got.Spec.ClusterIPs[1], "fd00:7::") {
		t.Errorf("two families: %+v", got.Spec)
	}
	second := got.Spec.ClusterIPs[1]
	if _, err := patchService(t, s, `{"spec":{"clusterIPs":["`+first.Spec.ClusterIP+`"]}}`); err == nil || !strings.Contains(err.Error(), "must be 'SingleStack' to release the secondary cluster IP") {
		t.Errorf("one address less: %v", err)
	}
	if _, err := patchService(t, s, `{"spec":{"ipFamilies":["IPv6","IPv4"]}}`); !apierrors.IsInvalid(err) {
		t.Errorf("another first family: %v", err)
	}
	got = must[*corev1.Service](t)(patchService(t, s, `{"spec":{"ipFamilyPolicy":"SingleStack"}}`))
	if fmt.Sprint(got.Spec.ClusterIPs) != "["+first.Spec.ClusterIP+"]" || len(got.Spec.IPFamilies) != 1 {
		t.Errorf("one family again: %+v", got.Spec)
	}
	if found := records(t, s.Client); found[second] != "" || len(found) != 1 {
		t.Errorf("the second address was not given back: %v", found)
	}
	six := service("six")
	six.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	six.Spec.ClusterIP, six.Spec.ClusterIPs = second, []string{second} // which is free now
	if got, err := services.Create(ctx, six, metav1.CreateOptions{}); err != nil || got.Spec.ClusterIP != second {
		t.Errorf("IPv6 only: %v, %v", got, err)
	}
	again := six.DeepCopy()
	again.Name = "again"
	if _, err := services.Create(ctx, again, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "failed to allocate IP "+second+": provided IP is already allocated") {
		t.Errorf("an address that is taken: %v", err)
	}
	mixed := service("mixed")
	mixed.Spec.IPFamilyPolicy, mixed.Spec.IPFamilies = ptr.To(corev1.IPFamilyPolicyPreferDualStack), []corev1.IPFamily{corev1.IPv6Protocol}
	if got, err := services.Create(ctx, mixed, metav1.CreateOptions{}); err != nil || fmt.Sprint(got.Spec.IPFamilies) != "[IPv6 IPv4]" || !strings.HasPrefix(got.Spec.ClusterIP, "fd00:7::") {
		t.Errorf("IPv6 first: %v, %v", got, err)
	}
}

func TestAServiceCIDRIsUsedUntilItIsDeleted(t *testing.T) {
	s := testkit.StartAPIServer(t, withRanges("10.7.0.0/30"))
	ctx := testContext(t)
	services, cidrs := s.Client.CoreV1().Services("default"), s.Client.NetworkingV1().ServiceCIDRs()
	preset := must[*networkingv1.ServiceCIDR](t)(cidrs.Get(ctx, "kubernetes", metav1.GetOptions{}))
	if fmt.Sprint(preset.Spec.CIDRs) != "[10.7.0.0/30]" {
		t.Errorf("the default one: %v", preset.Spec)
	}
	must[*corev1.Service](t)(services.Create(ctx, service("web"), metav1.CreateOptions{})) // the only address
	if _, err := services.Create(ctx, service("full"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("full: %v", err)
	}
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more", Finalizers: []string{"networking.k8s.io/service-cidr-finalizer"}},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.9.0.0/24"}}}
	more = must[*networkingv1.ServiceCIDR](t)(cidrs.Create(ctx, more, metav1.CreateOptions{}))
	asked := service("asked")
	asked.Spec.ClusterIP = "10.9.0.77"
	must[*corev1.Service](t)(services.Create(ctx, asked, metav1.CreateOptions{}))
	if got := must[*corev1.Service](t)(services.Create(ctx, service("full"), metav1.CreateOptions{})); !strings.HasPrefix(got.Spec.ClusterIP, "10.9.0.") {
		t.Errorf("from the second range: %v", got.Spec)
	}
	more.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Terminating", Message: "no", LastTransitionTime: metav1.Now()}}
	must[*networkingv1.ServiceCIDR](t)(cidrs.UpdateStatus(ctx, more, metav1.UpdateOptions{}))
	ok(t, cidrs.Delete(ctx, "more", metav1.DeleteOptions{}))
	testkit.WaitFor(t, "the range to be given up", func() error { // the watch cache follows
		late := service("late")
		_, err := services.Create(ctx, late, metav1.CreateOptions{})
		if err == nil {
			ok(t, services.Delete(ctx, "late", metav1.DeleteOptions{}))
			return errors.New("an address was given")
		}
		if !strings.Contains(err.Error(), "range is full") {
			t.Errorf("a range that is being deleted: %v", err)
		}
		return nil
	})
}

// An older mend kept no IPAddresses and no ServiceCIDR.
func TestServicesOfAnOlderMendKeepTheirAddresses(t *testing.T) {
	s := testkit.StartAPIServer(t, withRanges("10.7.0.0/26"))
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	had := map[string]string{} // address → Service
	for i := range 40 {
		made := must[*corev1.Service](t)(services.Create(ctx, service(fmt.Sprint("web", i)), metav1.CreateOptions{}))
		had[made.Spec.ClusterIP] = made.Name
	}
	for _, prefix := range []string{"/registry/ipaddresses/", "/registry/servicecidrs/"} {
		if gone, err := s.Store.Client().Delete(ctx, prefix, clientv3.WithPrefix()); err != nil || gone.Deleted == 0 {
			t.Fatalf("%s: %v, %v", prefix, gone, err)
		}
	}
	client := again(t, s, "10.7.0.0/26,fd00:7::/112")
	for address, want := range records(t, client) {
		if want != "services default/"+had[address]+" IPv4" {
			t.Errorf("%s is of %s, was of %s", address, want, had[address])
		}
	}
	if n := len(records(t, client)); n != 40 {
		t.Errorf("%d IPAddresses", n)
	}
	// What is left, 62 − 40 without that of default/kubernetes, goes to others at once.
	var group sync.WaitGroup
	var mu sync.Mutex
	for i := range 21 {
		group.Go(func() {
			made, err := client.CoreV1().Services("default").Create(ctx, service(fmt.Sprint("new", i)), metav1.CreateOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || had[made.Spec.ClusterIP] != "" {
				t.Errorf("new%d: %v, %v", i, made.Spec.ClusterIP, err)
				return
			}
			had[made.Spec.ClusterIP] = made.Name
		})
	}
	group.Wait()
	if _, err := client.CoreV1().Services("default").Create(ctx, service("full"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("full: %v", err)
	}
	if got := must[*corev1.Service](t)(client.CoreV1().Services("default").Create(ctx, service("kubernetes"), metav1.CreateOptions{})); got.Spec.ClusterIP != "10.7.0.1" {
		t.Errorf("default/kubernetes: %v", got.Spec.ClusterIP)
	}
	cidr := must[*networkingv1.ServiceCIDR](t)(client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{}))
	if !slices.Equal(cidr.Spec.CIDRs, []string{"10.7.0.0/26", "fd00:7::/112"}) {
		t.Errorf("the default ServiceCIDR: %v", cidr.Spec)
	}
}

// A second family is added to a ServiceCIDR that has only the first.
func TestTheDefaultServiceCIDRGetsASecondFamily(t *testing.T) {
	s := testkit.StartAPIServer(t, withRanges("10.7.0.0/26"))
	client := again(t, s, "10.7.0.0/26,fd00:7::/112")
	cidr := must[*networkingv1.ServiceCIDR](t)(client.NetworkingV1().ServiceCIDRs().Get(testContext(t), "kubernetes", metav1.GetOptions{}))
	if !slices.Equal(cidr.Spec.CIDRs, []string{"10.7.0.0/26", "fd00:7::/112"}) {
		t.Errorf("the default ServiceCIDR: %v", cidr.Spec)
	}
}

// An address that somebody took the IPAddress from is still its Service's.
func TestAnAddressWithoutItsIPAddressIsNotGivenAway(t *testing.T) {
	s := testkit.StartAPIServer(t, withRanges("10.7.0.0/30"))
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	made := must[*corev1.Service](t)(services.Create(ctx, service("web"), metav1.CreateOptions{}))
	ok(t, s.Client.NetworkingV1().IPAddresses().Delete(ctx, made.Spec.ClusterIP, metav1.DeleteOptions{}))
	if got, err := services.Create(ctx, service("thief"), metav1.CreateOptions{}); err == nil {
		t.Errorf("given away: %v", got.Spec.ClusterIP)
	}
}

// again is another server on what the first has stored.
func again(t *testing.T, s *testkit.APIServer, ranges string) kubernetes.Interface {
	t.Helper()
	server, err := apiserver.New(apiserver.Config{Etcd: s.Store.Client(), PKI: s.PKI, ServiceClusterIPRange: ranges})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the second server: %v", err)
		}
	})
	testkit.WaitFor(t, "the second server to be ready", server.Ready)
	client, err := kubernetes.NewForConfig(server.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

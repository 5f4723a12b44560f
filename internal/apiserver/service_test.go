package apiserver_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"mend/internal/apiserver"
	"mend/internal/testkit"
)

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

func TestServicesGetAddressesOfTheRangeEachItsOwn(t *testing.T) {
	s := testkit.StartAPIServer(t, func(_ testing.TB, c *apiserver.Config) { c.ServiceClusterIPRange = "10.7.0.0/29" })
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	first := must[*corev1.Service](t)(services.Create(ctx, service("kubernetes"), metav1.CreateOptions{}))
	if first.Spec.ClusterIP != "10.7.0.1" {
		t.Fatalf("kubernetes: %v", first.Spec)
	}
	// 8 addresses: network, broadcast, kubernetes, and 5 to give away.
	seen := map[string]bool{}
	for i := range 5 {
		got := must[*corev1.Service](t)(services.Create(ctx, service(fmt.Sprint("web", i)), metav1.CreateOptions{}))
		ip := got.Spec.ClusterIP
		if seen[ip] || !netip.MustParsePrefix("10.7.0.0/29").Contains(netip.MustParseAddr(ip)) || ip == first.Spec.ClusterIP {
			t.Errorf("address %s", ip)
		}
		seen[ip] = true
		if fields := fmt.Sprintf("%v %v %v", got.Spec.ClusterIPs, got.Spec.IPFamilies, *got.Spec.IPFamilyPolicy); fields != "["+ip+"] [IPv4] SingleStack" {
			t.Errorf("fields: %s", fields)
		}
	}
	_, err := services.Create(ctx, service("full"), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), `failed to allocate a serviceIP for Service "full": range is full`) {
		t.Errorf("when the range is full: %v", err)
	}
	ok(t, services.Delete(ctx, "web0", metav1.DeleteOptions{}))
	must[*corev1.Service](t)(services.Create(ctx, service("again"), metav1.CreateOptions{})) // with the address that was released
	outside := service("outside")
	outside.Spec.ClusterIP = "10.8.0.1"
	if _, err = services.Create(ctx, outside, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "failed to allocate IP 10.8.0.1: the provided network does not match the current range") {
		t.Errorf("outside: %v", err)
	}
}

func TestAServiceThatFailsKeepsNothing(t *testing.T) {
	s := testkit.StartAPIServer(t, func(_ testing.TB, c *apiserver.Config) { c.ServiceClusterIPRange = "10.7.0.0/30" })
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	for range 3 { // one address is free; a failure that kept it would show
		bad := service("bad")
		bad.Spec.Ports[0].Port = 0
		if _, err := services.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Fatalf("invalid: %v", err)
		}
		if _, err := services.Create(ctx, service("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := services.Create(ctx, service("good"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

// patchService changes Service web.
func patchService(t *testing.T, s *testkit.APIServer, text string) (*corev1.Service, error) {
	return s.Client.CoreV1().Services("default").Patch(testContext(t), "web", types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{})
}

func TestNodePortsBelongToOneServiceWhileItHasThem(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	created := must[*corev1.Service](t)(services.Create(ctx, service("web"), metav1.CreateOptions{}))
	got := must[*corev1.Service](t)(patchService(t, s, `{"spec":{"type":"NodePort"}}`))
	port := got.Spec.Ports[0].NodePort
	if port < 30000 || port > 32767 || got.Spec.ClusterIP != created.Spec.ClusterIP {
		t.Fatalf("node port: %+v", got.Spec)
	}
	other := service("other")
	other.Spec.Type = corev1.ServiceTypeNodePort
	for asked, want := range map[int32]string{
		port: fmt.Sprintf("spec.ports[0].nodePort: Invalid value: %d: provided port is already allocated", port),
		80:   "provided port is not in the valid range. The range of valid ports is 30000-32767",
	} {
		other.Spec.Ports[0].NodePort = asked
		if _, err := services.Create(ctx, other, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("node port %d: %v", asked, err)
		}
	}
	// The text it was created from, applied again, changes nothing.
	again := service("web")
	again.Spec.Type = corev1.ServiceTypeNodePort
	if got = must[*corev1.Service](t)(services.Update(ctx, again, metav1.UpdateOptions{})); got.Spec.ClusterIP != created.Spec.ClusterIP || got.Spec.Ports[0].NodePort != port {
		t.Errorf("updated without what was allocated: %+v", got)
	}
	if got = must[*corev1.Service](t)(patchService(t, s, `{"spec":{"type":"ClusterIP"}}`)); got.Spec.Ports[0].NodePort != 0 {
		t.Errorf("back: %+v", got.Spec)
	}
	other.Spec.Ports[0].NodePort = port
	must[*corev1.Service](t)(services.Create(ctx, other, metav1.CreateOptions{})) // with the port that was released
}

func TestAServiceBecomesANameAndGetsAnAddressAgain(t *testing.T) {
	s := testkit.StartAPIServer(t)
	must[*corev1.Service](t)(s.Client.CoreV1().Services("default").Create(testContext(t), service("web"), metav1.CreateOptions{}))
	if got, err := patchService(t, s, `{"spec":{"type":"ExternalName","externalName":"example.com"}}`); err != nil || got.Spec.ClusterIP != "" {
		t.Errorf("a name only: %+v, %v", got.Spec, err)
	}
	if got, err := patchService(t, s, `{"spec":{"type":"ClusterIP","externalName":null}}`); err != nil || got.Spec.ClusterIP == "" {
		t.Errorf("an address again: %+v, %v", got.Spec, err)
	}
	if _, err := patchService(t, s, `{"spec":{"clusterIP":"10.96.0.77","clusterIPs":["10.96.0.77"]}}`); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "may not change once set") {
		t.Errorf("changing the address: %v", err)
	}
}

func TestHeadlessAndTwoFamilyServices(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	services := s.Client.CoreV1().Services("default")
	headless := service("headless")
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	if got, err := services.Create(ctx, headless, metav1.CreateOptions{}); err != nil || got.Spec.ClusterIP != "None" || len(got.Spec.IPFamilies) != 1 {
		t.Errorf("headless: %+v, %v", got, err)
	}
	open := service("open")
	open.Spec.ClusterIP, open.Spec.Selector = corev1.ClusterIPNone, nil
	if got, err := services.Create(ctx, open, metav1.CreateOptions{}); err != nil || *got.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack || len(got.Spec.IPFamilies) != 2 {
		t.Errorf("headless without a selector: %+v, %v", got, err)
	}
	dual := service("dual")
	dual.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	if _, err := services.Create(ctx, dual, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "this cluster is not configured for dual-stack services") {
		t.Errorf("two families required: %v", err)
	}
	dual.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	if got, err := services.Create(ctx, dual, metav1.CreateOptions{}); err != nil || len(got.Spec.ClusterIPs) != 1 {
		t.Errorf("two families preferred: %+v, %v", got, err)
	}
	six := service("six")
	six.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	if _, err := services.Create(ctx, six, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`) {
		t.Errorf("IPv6: %v", err)
	}
}

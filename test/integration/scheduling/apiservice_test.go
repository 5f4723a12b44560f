package scheduling

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"mend/internal/controller/apiservice"
)

func TestServiceOfTheAPIServer(t *testing.T) {
	config := apiservice.Config{Addresses: []string{"192.0.2.1"}, Port: 7443}
	w := newWorld(t, clock.RealClock{}, apiservice.Declaration(config))
	services := w.client.CoreV1().Services("default")
	var service *v1.Service
	complete := func() error {
		var err error
		if service, err = services.Get(w.ctx, "kubernetes", metav1.GetOptions{}); err != nil {
			return err
		}
		if _, err = w.client.CoreV1().Endpoints("default").Get(w.ctx, "kubernetes", metav1.GetOptions{}); err != nil {
			return err
		}
		slice, err := w.client.DiscoveryV1().EndpointSlices("default").Get(w.ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := fmt.Sprintln(slice.Endpoints[0].Addresses, *slice.Ports[0].Port, *slice.Ports[0].Name); got != "[192.0.2.1] 7443 https\n" {
			return fmt.Errorf("slice says %s", got)
		}
		return nil
	}
	w.eventually("all three", complete)
	if service.Spec.ClusterIP != "10.96.0.1" || service.Spec.Ports[0].Port != 443 || service.Spec.Ports[0].TargetPort.IntValue() != 7443 {
		t.Errorf("service is %+v", service.Spec)
	}

	if err := services.Delete(w.ctx, "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.client.DiscoveryV1().EndpointSlices("default").Delete(w.ctx, "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("what was deleted", complete)
	if service.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("the new service has %s", service.Spec.ClusterIP)
	}

	must(w.client.CoreV1().Endpoints("default").Patch(w.ctx, "kubernetes", types.MergePatchType, []byte(`{"subsets":[]}`), metav1.PatchOptions{}))(w)
	w.eventually("endpoints put right", func() error {
		endpoints := must(w.client.CoreV1().Endpoints("default").Get(w.ctx, "kubernetes", metav1.GetOptions{}))(w)
		want := []v1.EndpointSubset{{Addresses: []v1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []v1.EndpointPort{{Name: "https", Port: 7443, Protocol: v1.ProtocolTCP}}}}
		if diff := cmp.Diff(want, endpoints.Subsets); diff != "" {
			return fmt.Errorf("subsets (-want +got):\n%s", diff)
		}
		return nil
	})
	// What the server made of the objects is what the loop wants: at rest it
	// writes nothing.
	rest := apiservice.MakePlan(apiservice.Observed{
		Service:   must(services.Get(w.ctx, "kubernetes", metav1.GetOptions{}))(w),
		Endpoints: must(w.client.CoreV1().Endpoints("default").Get(w.ctx, "kubernetes", metav1.GetOptions{}))(w),
		Slice:     must(w.client.DiscoveryV1().EndpointSlices("default").Get(w.ctx, "kubernetes", metav1.GetOptions{}))(w),
	}, config)
	if diff := cmp.Diff(apiservice.Plan{}, rest); diff != "" {
		t.Errorf("not at rest:\n%s", diff)
	}
}

package endpoints

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	packing "k8s.io/kubernetes/pkg/api/v1/endpoints"
	"pgregory.net/rapid"
)

func draw(t *rapid.T) (*v1.Service, []*v1.Pod) {
	s := service(func(s *v1.Service) {
		s.Spec.PublishNotReadyAddresses = rapid.Bool().Draw(t, "publish")
		if rapid.Bool().Draw(t, "named") {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "named", Port: 81, Protocol: v1.ProtocolTCP, TargetPort: intstr.FromString("web")})
		}
		if rapid.Bool().Draw(t, "headless") {
			s.Spec.ClusterIP = v1.ClusterIPNone
			if rapid.Bool().Draw(t, "no ports") {
				s.Spec.Ports = nil
			}
		}
	})
	var all []*v1.Pod
	for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
		all = append(all, pod(fmt.Sprintf("10.42.0.%d%s%s", i+2,
			rapid.SampledFrom([]string{"", "", " unready", " ending", " done"}).Draw(t, "state"),
			rapid.SampledFrom([]string{"", " port=9090", " port=9091"}).Draw(t, "port"))))
	}
	return s, all
}

// Subsets are packed exactly as upstream packs one subset for each Pod and port.
func TestPackedAsUpstreamPacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, all := draw(t)
		var single []v1.EndpointSubset
		for _, p := range all {
			m, ok := memberOf(s, p)
			if !ok {
				continue
			}
			for _, port := range portsOf(s, p) {
				one := v1.EndpointSubset{Ports: []v1.EndpointPort{port}}
				if port.Port == noPort {
					one.Ports = nil
				}
				if m.ready {
					one.Addresses = []v1.EndpointAddress{m.address}
				} else {
					one.NotReadyAddresses = []v1.EndpointAddress{m.address}
				}
				single = append(single, one)
			}
		}
		if diff := cmp.Diff(packing.RepackSubsets(single), pack(s, all), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// One plan brings the object to rest, whatever it was, and the order of Pods does not
// matter.
func TestOnePlanIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, before := draw(t)
		o := Observed{Service: s, Pods: before}
		settle := func() {
			for _, action := range plan(o).Actions {
				switch a := action.(type) {
				case Create:
					o.Endpoints = a.Endpoints
				case Update:
					o.Endpoints = a.Endpoints
				case Delete:
					o.Endpoints = nil
				}
			}
			if again := plan(o); len(again.Actions) > 0 {
				t.Fatalf("not at rest: %v", again)
			}
		}
		settle()
		o.Service, o.Pods = draw(t)
		settle()
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Shuffle(len(o.Pods), func(i, j int) { o.Pods[i], o.Pods[j] = o.Pods[j], o.Pods[i] })
		if again := plan(o); len(again.Actions) > 0 {
			t.Fatalf("another order is a difference: %v", again)
		}
	})
}

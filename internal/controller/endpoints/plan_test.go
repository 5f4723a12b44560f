package endpoints

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// service is ns/web with port http: 80 → 8080.
func service(change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: map[string]string{"team": "a"}},
		Spec: v1.ServiceSpec{
			ClusterIP: "10.43.0.10", IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, Selector: map[string]string{"app": "web"},
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

// pod writes a Pod as "address[ unready][ ending][ done][ port=n]"; port names the port
// "web" of its container.
func pod(text string) *v1.Pod {
	words := strings.Fields(text)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + words[0], UID: types.UID("uid-" + words[0])},
		Spec:       v1.PodSpec{NodeName: "node", Containers: []v1.Container{{}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: words[0], PodIPs: []v1.PodIP{{IP: words[0]}},
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
	for _, w := range words[1:] {
		switch name, value, _ := strings.Cut(w, "="); name {
		case "unready":
			p.Status.Conditions[0].Status = v1.ConditionFalse
		case "ending":
			p.DeletionTimestamp = &metav1.Time{}
		case "done":
			p.Status.Phase = v1.PodSucceeded
		case "port":
			var n int32
			fmt.Sscan(value, &n)
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{Name: "web", ContainerPort: n, Protocol: v1.ProtocolTCP}}
		}
	}
	return p
}

func pods(texts ...string) []*v1.Pod {
	var all []*v1.Pod
	for _, text := range texts {
		all = append(all, pod(text))
	}
	return all
}

// show prints subsets as kubectl does, not ready ones behind a bar.
func show(subsets []v1.EndpointSubset) string {
	list := func(all []v1.EndpointAddress) string {
		var ips []string
		for _, a := range all {
			ips = append(ips, a.IP)
		}
		return strings.Join(ips, ",")
	}
	var out []string
	for _, s := range subsets {
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s:%d", p.Name, p.Port))
		}
		out = append(out, fmt.Sprintf("%s|%s at %s", list(s.Addresses), list(s.NotReadyAddresses), strings.Join(ports, ",")))
	}
	return strings.Join(out, "; ")
}

func TestSubsets(t *testing.T) {
	named := func(s *v1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("web") }
	tests := []struct {
		name    string
		service *v1.Service
		pods    []*v1.Pod
		want    string
	}{
		{"no Pods", service(), nil, ""},
		{"ready and not ready", service(), pods("10.42.0.3", "10.42.0.2", "10.42.0.4 unready"), "10.42.0.2,10.42.0.3|10.42.0.4 at http:8080"},
		{"ending and done ones are left out", service(), pods("10.42.0.2 ending", "10.42.0.3 done", "10.42.0.4"), "10.42.0.4| at http:8080"},
		{"all are published", service(func(s *v1.Service) { s.Spec.PublishNotReadyAddresses = true }),
			pods("10.42.0.2 ending", "10.42.0.3 done", "10.42.0.4 unready"), "10.42.0.2,10.42.0.4| at http:8080"},
		{"a port by name", service(named), pods("10.42.0.2 port=9090", "10.42.0.3 port=9090"), "10.42.0.2,10.42.0.3| at http:9090"},
		{"a port by name that a Pod lacks", service(named), pods("10.42.0.2 port=9090", "10.42.0.3"), "10.42.0.2| at http:9090"},
		{"a Pod of the other family", service(), pods("fd42::2", "10.42.0.2"), "10.42.0.2| at http:8080"},
		{"an IPv6 Service", service(func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol} }),
			pods("fd42::2", "10.42.0.2"), "fd42::2| at http:8080"},
		{"two ports share a subset", service(func(s *v1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "admin", Port: 81, Protocol: v1.ProtocolTCP, TargetPort: intstr.FromInt32(8081)})
		}), pods("10.42.0.2"), "10.42.0.2| at http:8080,admin:8081"},
		{"headless without ports", service(func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.Ports = v1.ClusterIPNone, nil }),
			pods("10.42.0.2", "10.42.0.3 unready"), "10.42.0.2|10.42.0.3 at "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := show(pack(tt.service, tt.pods)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAddressesSayWhoTheyAre(t *testing.T) {
	p := pod("10.42.0.2")
	p.Spec.Hostname, p.Spec.Subdomain = "one", "web"
	want := v1.EndpointAddress{IP: "10.42.0.2", Hostname: "one", NodeName: ptr.To("node"),
		TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "pod-10.42.0.2", UID: "uid-10.42.0.2"}}
	if diff := cmp.Diff(want, pack(service(), []*v1.Pod{p})[0].Addresses[0]); diff != "" {
		t.Error(diff)
	}
}

func TestPlans(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	shown := func(change ...func(*v1.Endpoints)) *v1.Endpoints {
		e := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", ResourceVersion: "5", UID: "old",
			Labels: map[string]string{"team": "a", labelManagedBy: managedBy}}, Subsets: pack(service(), pods("10.42.0.2"))}
		for _, f := range change {
			f(e)
		}
		return e
	}
	base := func() Observed {
		return Observed{Service: service(), Pods: pods("10.42.0.2"), Endpoints: shown(), Since: since}
	}
	changed := shown(func(e *v1.Endpoints) {
		e.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}
	})
	created := changed.DeepCopy()
	created.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: created.Labels, Annotations: created.Annotations}
	headless := changed.DeepCopy()
	headless.Labels[v1.IsHeadlessService] = ""
	tests := []struct {
		name string
		with func(*Observed)
		want []Action
	}{
		{"at rest", func(*Observed) {}, nil},
		{"nothing there", func(o *Observed) { o.Service, o.Endpoints = nil, nil }, nil},
		{"the Service is gone", func(o *Observed) { o.Service = nil }, []Action{Delete{shown(), "there is no such Service"}}},
		{"the Service has no selector", func(o *Observed) { o.Service.Spec.Selector, o.Endpoints = nil, nil }, nil},
		{"the Service is a name", func(o *Observed) { o.Service.Spec.Type, o.Endpoints = v1.ServiceTypeExternalName, nil }, nil},
		{"the Service ends", func(o *Observed) { o.Service.DeletionTimestamp, o.Pods = &metav1.Time{}, nil }, nil},
		{"missing", func(o *Observed) { o.Endpoints = nil }, []Action{Create{created, "the Service has no Endpoints"}}},
		{"other Pods", func(o *Observed) { o.Endpoints.Subsets = nil }, []Action{Update{changed, "the Service's Pods are others"}}},
		{"other labels", func(o *Observed) { o.Endpoints.Labels["team"] = "b" }, []Action{Update{changed, "the Service's Pods are others"}}},
		{"a client took it over", func(o *Observed) { delete(o.Endpoints.Labels, labelManagedBy) }, []Action{Update{changed, "the Service's Pods are others"}}},
		{"headless now", func(o *Observed) { o.Service.Spec.ClusterIP = v1.ClusterIPNone }, []Action{Update{headless, "the Service's Pods are others"}}},
		{"no longer too many", func(o *Observed) {
			o.Endpoints.Annotations = map[string]string{v1.EndpointsOverCapacity: cut}
		}, []Action{Update{changed, "the Service's Pods are others"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := base()
			tt.with(&o)
			if diff := cmp.Diff(tt.want, plan(o).Actions); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTooManyAddresses(t *testing.T) {
	many := func(ready, unready int) []v1.EndpointSubset {
		var s v1.EndpointSubset
		s.Addresses = make([]v1.EndpointAddress, ready)
		s.NotReadyAddresses = make([]v1.EndpointAddress, unready)
		return []v1.EndpointSubset{s}
	}
	for _, tt := range []struct {
		subsets []v1.EndpointSubset
		want    string
	}{
		{many(1000, 0), "1000|0 whole"},
		{many(900, 200), "900|100 cut"},
		{many(1500, 200), "1000|0 cut"},
		{append(many(1000, 10), many(500, 10)...), "667|0 333|0 cut"},
		{append(many(300, 500), many(300, 500)...), "300|200 300|200 cut"},
	} {
		subsets, over := truncate(tt.subsets)
		var got []string
		for _, s := range subsets {
			got = append(got, fmt.Sprintf("%d|%d", len(s.Addresses), len(s.NotReadyAddresses)))
		}
		got = append(got, map[bool]string{true: "cut", false: "whole"}[over])
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("got %q, want %q", text, tt.want)
		}
	}
}

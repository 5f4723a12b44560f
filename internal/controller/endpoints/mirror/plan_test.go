package mirror

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"pgregory.net/rapid"
)

// subset writes a subset as "address,address|address at port,port"; behind the bar are
// those that are not ready.
func subset(text string) v1.EndpointSubset {
	addresses, ports, _ := strings.Cut(text, " at ")
	ready, unready, _ := strings.Cut(addresses, "|")
	list := func(text string) (all []v1.EndpointAddress) {
		for ip := range strings.SplitSeq(text, ",") {
			if ip != "" {
				all = append(all, v1.EndpointAddress{IP: ip})
			}
		}
		return all
	}
	s := v1.EndpointSubset{Addresses: list(ready), NotReadyAddresses: list(unready)}
	for port := range strings.SplitSeq(ports, ",") {
		var n int32
		fmt.Sscan(port, &n)
		s.Ports = append(s.Ports, v1.EndpointPort{Name: "p" + port, Port: n, Protocol: v1.ProtocolTCP})
	}
	return s
}

func endpoints(subsets ...string) *v1.Endpoints {
	e := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "e", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"c": "d", v1.EndpointsLastChangeTriggerTime: "now", v1.LastAppliedConfigAnnotation: "{}"}}}
	for _, text := range subsets {
		e.Subsets = append(e.Subsets, subset(text))
	}
	return e
}

// world holds what the API would.
type world struct {
	Observed
	made int
}

func newWorld(subsets ...string) *world {
	return &world{Observed: Observed{Endpoints: endpoints(subsets...), Service: &v1.Service{}}}
}

// settle carries plans out until there is nothing to do, and returns what was done.
func (w *world) settle(t interface{ Fatalf(string, ...any) }) []string {
	var done []string
	for range 3 {
		p := plan(w.Observed)
		if len(p.Actions) == 0 {
			return done
		}
		for _, action := range p.Actions {
			switch a := action.(type) {
			case Create:
				w.made++
				a.Slice.Name = fmt.Sprintf("%s%d", a.Slice.GenerateName, w.made)
				w.Slices = append(w.Slices, a.Slice)
				done = append(done, "create")
			case Update:
				i := slices.IndexFunc(w.Slices, func(s *discovery.EndpointSlice) bool { return s.Name == a.Slice.Name })
				if w.Slices[i].AddressType != a.Slice.AddressType {
					t.Fatalf("changes the family of %s", a.Slice.Name)
				}
				w.Slices[i] = a.Slice
				done = append(done, "update")
			case Delete:
				w.Slices = slices.DeleteFunc(w.Slices, func(s *discovery.EndpointSlice) bool { return s.Name == a.Slice.Name })
				done = append(done, "delete")
			}
		}
	}
	t.Fatalf("does not come to rest")
	return nil
}

// String shows the slices.
func (w *world) String() string {
	var all []string
	for _, s := range w.Slices {
		var ips, ports []string
		for _, e := range s.Endpoints {
			ip := e.Addresses[0]
			if !*e.Conditions.Ready {
				ip = "!" + ip
			}
			ips = append(ips, ip)
		}
		slices.Sort(ips)
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprint(*p.Port))
		}
		slices.Sort(ports)
		all = append(all, strings.Join(ips, ",")+" at "+strings.Join(ports, ","))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func TestMirrors(t *testing.T) {
	skip := func(w *world) { w.Endpoints.Labels[discovery.LabelSkipMirror] = "true" }
	for _, tt := range []struct {
		name   string
		first  []string
		change func(*world)
		want   string
		done   string
	}{
		{"nothing", nil, nil, "", ""},
		{"one subset", []string{"1.2.3.4,1.2.3.5|1.2.3.6 at 80,81"}, nil, "!1.2.3.6,1.2.3.4,1.2.3.5 at 80,81", ""},
		{"two families", []string{"1.2.3.4,fd00::1 at 80"}, nil, "1.2.3.4 at 80; fd00::1 at 80", ""},
		{"two subsets", []string{"1.2.3.4 at 80", "1.2.3.5 at 81"}, nil, "1.2.3.4 at 80; 1.2.3.5 at 81", ""},
		{"an address that is none", []string{"1.2.3.4,nonsense at 80"}, nil, "1.2.3.4 at 80", ""},
		{"an address comes", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints.Subsets[0] = subset("1.2.3.4,1.2.3.5 at 80") }, "1.2.3.4,1.2.3.5 at 80", "update"},
		{"another port", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints.Subsets[0] = subset("1.2.3.4 at 81") }, "1.2.3.4 at 81", "update"},
		{"another family", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints.Subsets[0] = subset("fd00::1 at 80") }, "fd00::1 at 80", "create delete"},
		{"labels", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints.Labels["x"] = "y" }, "1.2.3.4 at 80", "update"},
		{"emptied", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints.Subsets = nil }, "", "delete"},
		{"gone", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints = nil }, "", "delete"},
		{"no Service", []string{"1.2.3.4 at 80"}, func(w *world) { w.Service = nil }, "", "delete"},
		{"a selector", []string{"1.2.3.4 at 80"}, func(w *world) { w.Service.Spec.Selector = map[string]string{"a": "b"} }, "", "delete"},
		{"not to be mirrored", []string{"1.2.3.4 at 80"}, skip, "", "delete"},
		{"a lock", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints.Annotations[resourcelock.LeaderElectionRecordAnnotationKey] = "" }, "", "delete"},
		{"made anew", []string{"1.2.3.4 at 80"}, func(w *world) { w.Endpoints.UID = "another" }, "1.2.3.4 at 80", "update"},
		{"somebody made a second", []string{"1.2.3.4 at 80"}, func(w *world) {
			twin := w.Slices[0].DeepCopy()
			twin.Name = "web-twin"
			w.Slices = append(w.Slices, twin)
		}, "1.2.3.4 at 80", "delete"},
		{"it ends", []string{"1.2.3.4 at 80"}, func(w *world) {
			w.Endpoints.DeletionTimestamp = &metav1.Time{}
			w.Endpoints.Subsets[0] = subset("fd00::1 at 80")
		}, "", "delete"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(tt.first...)
			w.settle(t)
			done := ""
			if tt.change != nil {
				tt.change(w)
				done = strings.Join(w.settle(t), " ")
			}
			if got := w.String(); got != tt.want || done != tt.done {
				t.Errorf("got %q by %q, want %q by %q", got, done, tt.want, tt.done)
			}
		})
	}
}

func TestSlicesSayWhoseTheyAre(t *testing.T) {
	w := newWorld("1.2.3.4 at 80")
	w.settle(t)
	want := metav1.ObjectMeta{
		Namespace: "ns", Name: "web-1", GenerateName: "web-",
		Labels:          map[string]string{"a": "b", discovery.LabelServiceName: "web", discovery.LabelManagedBy: managedBy},
		Annotations:     map[string]string{"c": "d"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w.Endpoints, v1.SchemeGroupVersion.WithKind("Endpoints"))},
	}
	if diff := cmp.Diff(want, w.Slices[0].ObjectMeta); diff != "" {
		t.Error(diff)
	}
}

func TestNotes(t *testing.T) {
	var many []string
	for i := range 1002 {
		many = append(many, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))
	}
	w := newWorld(strings.Join(many, ",")+" at 80", "nonsense at 81")
	p := plan(w.Observed)
	want := []Note{{"InvalidIPAddress", "Skipped 1 invalid IP addresses when mirroring to EndpointSlices"},
		{"TooManyAddressesToMirror", "A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 3 addresses were skipped"}}
	if diff := cmp.Diff(want, p.Notes); diff != "" {
		t.Error(diff)
	}
	if n := len(p.Actions[0].(Create).Slice.Endpoints); n != 1000 {
		t.Errorf("mirrors %d addresses", n)
	}
}

// Whatever Endpoints become, one plan is enough, and every address is in one slice.
func TestMirrorsComeToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			w.Endpoints.Subsets = nil
			var want []string
			for port := range rapid.IntRange(0, 3).Draw(t, "subsets") {
				var ips []string
				for i := range rapid.IntRange(1, 3).Draw(t, "addresses") {
					ips = append(ips, fmt.Sprintf(rapid.SampledFrom([]string{"10.0.0.%d", "fd00::%d"}).Draw(t, "family"), 10*port+i+1))
				}
				w.Endpoints.Subsets = append(w.Endpoints.Subsets, subset(strings.Join(ips, ",")+fmt.Sprint(" at ", 80+port)))
				for _, ip := range ips {
					want = append(want, fmt.Sprintf("%s at %d", ip, 80+port))
				}
			}
			before := w.Slices
			w.settle(t)
			var got []string
			for _, s := range w.Slices {
				for _, e := range s.Endpoints {
					got = append(got, fmt.Sprintf("%s at %d", e.Addresses[0], *s.Ports[0].Port))
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("from %v:\n%s", before, diff)
			}
		}
	})
}

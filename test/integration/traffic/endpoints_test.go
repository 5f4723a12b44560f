package traffic

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// shown prints a Service's endpoints: r ready, s serving, t terminating.
func (w *world) shown(service string) string {
	w.Helper()
	var all []string
	for _, slice := range w.slices(service) {
		for _, e := range slice.Endpoints {
			text := e.Addresses[0] + " "
			for flag, on := range map[string]*bool{"r": e.Conditions.Ready, "s": e.Conditions.Serving, "t": e.Conditions.Terminating} {
				if on != nil && *on {
					text += flag
				}
			}
			flags := []byte(text[len(e.Addresses[0])+1:])
			slices.Sort(flags)
			all = append(all, e.Addresses[0]+" "+string(flags))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// listed prints a Service's Endpoints, not ready ones behind a bar.
func (w *world) listed(name string) string {
	w.Helper()
	e, err := w.client.CoreV1().Endpoints("default").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var ready, unready []string
	for _, s := range e.Subsets {
		for _, a := range s.Addresses {
			ready = append(ready, a.IP)
		}
		for _, a := range s.NotReadyAddresses {
			unready = append(unready, a.IP)
		}
	}
	return strings.Join(ready, ",") + "|" + strings.Join(unready, ",")
}

func TestEndpointsFollowPods(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	w.service("all", func(s *v1.Service) {
		s.Spec.Selector, s.Spec.PublishNotReadyAddresses, s.Spec.ClusterIP = map[string]string{"app": "web"}, true, v1.ClusterIPNone
	})
	are := func(when, web, webListed, all, allListed string) {
		t.Helper()
		w.equal(when+": slices", web, func() string { return w.shown("web") })
		w.equal(when+": Endpoints", webListed, func() string { return w.listed("web") })
		w.equal(when+": slices that publish all", all, func() string { return w.shown("all") })
		w.equal(when+": Endpoints that publish all", allListed, func() string { return w.listed("all") })
	}
	are("without Pods", "", "|", "", "|")
	one := w.pod("one", "web", "10.42.0.2", false)
	w.pod("other", "other", "10.42.0.9", true)
	are("a Pod that is not ready", "10.42.0.2 ", "|10.42.0.2", "10.42.0.2 r", "10.42.0.2|")
	w.says(one, true)
	two := w.pod("two", "web", "10.42.0.3", true)
	are("ready", "10.42.0.2 rs, 10.42.0.3 rs", "10.42.0.2,10.42.0.3|", "10.42.0.2 rs, 10.42.0.3 rs", "10.42.0.2,10.42.0.3|")
	one = w.remove("one")
	are("one ends", "10.42.0.2 st, 10.42.0.3 rs", "10.42.0.3|", "10.42.0.2 rst, 10.42.0.3 rs", "10.42.0.2,10.42.0.3|")
	w.says(one, false)
	are("it fails its probe meanwhile", "10.42.0.2 t, 10.42.0.3 rs", "10.42.0.3|", "10.42.0.2 rt, 10.42.0.3 rs", "10.42.0.2,10.42.0.3|")
	w.gone("one")
	are("it is gone", "10.42.0.3 rs", "10.42.0.3|", "10.42.0.3 rs", "10.42.0.3|")
	patch := []byte(`{"metadata":{"labels":{"app":"other"}}}`)
	must(w.client.CoreV1().Pods("default").Patch(w.ctx, two.Name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	are("the other is relabelled", "", "|", "", "|")
	if err := w.client.CoreV1().Services("default").Delete(w.ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.equal("the Service is gone", `endpoints "web" not found`, func() string { return w.listed("web") })
}

// Bursts of changes end in slices that are right, however many writes were under way.
func TestSlicesAfterABurst(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	var want []string
	for i := range 120 {
		name := fmt.Sprintf("pod-%03d", i)
		ip := fmt.Sprintf("10.42.0.%d", i+2)
		p := w.pod(name, "web", ip, i%3 > 0)
		serving := map[bool]string{true: "s"}[i%3 > 0]
		switch i % 4 {
		case 0:
			w.says(p, true)
			want = append(want, ip+" rs")
		case 1:
			w.remove(name)
			want = append(want, ip+" "+serving+"t")
		default:
			want = append(want, ip+" "+map[string]string{"s": "rs"}[serving])
		}
	}
	slices.Sort(want)
	w.equal("all of them", strings.Join(want, ", "), func() string { return w.shown("web") })
	for _, slice := range w.slices("web") {
		if n := len(slice.Endpoints); n > 100 {
			t.Errorf("%d endpoints in a slice", n)
		}
	}
}

// Slices and Endpoints that somebody else spoils are put right.
func TestSpoiltSlicesAreMended(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	w.pod("one", "web", "10.42.0.2", true)
	right := func(when string) {
		t.Helper()
		w.equal(when, "10.42.0.2 rs", func() string { return w.shown("web") })
		w.equal(when, "10.42.0.2|", func() string { return w.listed("web") })
	}
	right("at first")
	slice := w.slices("web")[0]
	slice.Endpoints = nil
	must(w.client.DiscoveryV1().EndpointSlices("default").Update(w.ctx, &slice, metav1.UpdateOptions{}))(t)
	right("emptied")
	if err := w.client.DiscoveryV1().EndpointSlices("default").Delete(w.ctx, slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.client.CoreV1().Endpoints("default").Delete(w.ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	right("deleted")
}

func TestHandMadeEndpointsAreMirrored(t *testing.T) {
	w := newWorld(t)
	w.service("db", func(s *v1.Service) { s.Spec.Selector = nil })
	e := must(w.client.CoreV1().Endpoints("default").Create(w.ctx, &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Subsets: []v1.EndpointSubset{{Addresses: []v1.EndpointAddress{{IP: "203.0.113.5"}}, Ports: []v1.EndpointPort{{Name: "http", Port: 5432}}}}}, metav1.CreateOptions{}))(t)
	w.equal("the mirror", "203.0.113.5 r", func() string { return w.shown("db") })
	e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, v1.EndpointAddress{IP: "203.0.113.6"})
	must(w.client.CoreV1().Endpoints("default").Update(w.ctx, e, metav1.UpdateOptions{}))(t)
	w.equal("one more", "203.0.113.5 r, 203.0.113.6 r", func() string { return w.shown("db") })
	if err := w.client.CoreV1().Endpoints("default").Delete(w.ctx, "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.equal("gone", "", func() string { return w.shown("db") })
	must(w.client.DiscoveryV1().EndpointSlices("default").Create(w.ctx, &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "by-hand", Labels: map[string]string{discovery.LabelServiceName: "db"}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{{Addresses: []string{"203.0.113.7"}}},
	}, metav1.CreateOptions{}))(t)
	w.equal("a slice by hand stays", "203.0.113.7 ", func() string { return w.shown("db") })
}

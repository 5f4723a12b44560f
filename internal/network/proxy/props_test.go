package proxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"mend/internal/network/catalog"
)

// drawService draws a Service; addresses and ports are few, so that Services collide.
func drawService(t *rapid.T) catalog.Service {
	if rapid.IntRange(0, 9).Draw(t, "gone") == 0 {
		return catalog.Service{}
	}
	s := web()
	ip := func(label, net string) string { return fmt.Sprintf("%s.%d", net, rapid.IntRange(1, 3).Draw(t, label)) }
	s.Spec.ClusterIP = ip("clusterIP", "10.43.0")
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	protocol := rapid.SampledFrom([]v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP}).Draw(t, "protocol")
	s.Spec.Ports[0].Protocol = protocol
	maybe := func(label string, f func(*v1.Service)) {
		if rapid.Bool().Draw(t, label) {
			f(s)
		}
	}
	maybe("node port", nodePort(int32(30000+rapid.IntRange(0, 2).Draw(t, "nodePort"))))
	maybe("external", externalIPs(ip("externalIP", "203.0.113"), ip("externalIP", "10.43.0")))
	maybe("load balancer", loadBalancer("198.18.0.1"))
	maybe("ranges", func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "10.1.0.0/16"} })
	maybe("external local", externalLocal)
	maybe("internal local", internalLocal)
	maybe("sticky", sticky(int32(rapid.IntRange(1, 2).Draw(t, "seconds"))))
	var slices []*discovery.EndpointSlice
	for i := range rapid.IntRange(0, 2).Draw(t, "slices") {
		var endpoints []string
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			endpoints = append(endpoints, ip("endpoint", "10.42.0")+rapid.SampledFrom([]string{"", "@here", "@there"}).Draw(t, "node")+
				rapid.SampledFrom([]string{"", "", " ending", " unready", " zone=a"}).Draw(t, "state"))
		}
		one := slice(protocol, endpoints...)
		one.Name = fmt.Sprint(one.Name, i)
		slices = append(slices, one)
	}
	return catalog.Service{Object: s, Slices: slices}
}

// replay applies a difference as the kernel would, which refuses to delete what is not
// there and to add what is.
func replay(t *rapid.T, held map[slot]string, d Difference) {
	for _, e := range d.Delete {
		if value, ok := held[e.slot()]; !ok || value != e.Value {
			t.Fatalf("deletes %v, which holds %q, %v", e, value, ok)
		}
		delete(held, e.slot())
	}
	for _, e := range d.Add {
		if _, ok := held[e.slot()]; ok {
			t.Fatalf("adds %v, which is there", e)
		}
		held[e.slot()] = e.Value
	}
}

// Whatever happens, the kernel ends up with what the present Services say, by no more
// than the differences; and with nothing changed there is no difference.
func TestDifferencesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, held := newLedger(), map[slot]string{}
		now := map[catalog.Key]Rendering{}
		classes := map[Class]bool{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			change := map[catalog.Key]Rendering{}
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				key := catalog.Key{Namespace: "ns", Name: rapid.StringMatching("[a-c]").Draw(t, "name")}
				change[key] = render(here, drawService(t))
			}
			maps.Copy(now, change)
			d := l.change(change)
			replay(t, held, d)
			for _, k := range d.AddClasses[IPv4] {
				classes[k] = true
			}
			for _, k := range d.DropClasses[IPv4] {
				delete(classes, k)
			}
			if again := l.change(change); !again.isEmpty() {
				t.Fatalf("the same again is a difference: %v", again)
			}
		}
		fresh := newLedger()
		fresh.change(now)
		want := map[slot]string{}
		for _, e := range fresh.all() {
			want[e.slot()] = e.Value
		}
		if !maps.Equal(held, want) {
			t.Fatalf("the kernel holds %v, want %v", held, want)
		}
		if got := slices.SortedFunc(maps.Keys(classes), compareClasses); !slices.Equal(got, fresh.classesOf(IPv4)) {
			t.Fatalf("classes %v, want %v", got, fresh.classesOf(IPv4))
		}
	})
}

// A rendering does not depend on the order of slices, endpoints and ports.
func TestRenderingIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawService(t)
		want := render(here, s).String()
		shuffled := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		mixed := catalog.Service{Object: s.Object}
		for _, one := range s.Slices {
			one = one.DeepCopy()
			shuffled.Shuffle(len(one.Endpoints), func(i, j int) { one.Endpoints[i], one.Endpoints[j] = one.Endpoints[j], one.Endpoints[i] })
			mixed.Slices = append(mixed.Slices, one)
		}
		shuffled.Shuffle(len(mixed.Slices), func(i, j int) { mixed.Slices[i], mixed.Slices[j] = mixed.Slices[j], mixed.Slices[i] })
		if got := render(here, mixed).String(); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// A packet that any Service carries goes to one of its endpoints, or is refused; the
// table never leads it anywhere else, and never to an endpoint that is not usable.
func TestPacketsNeverGoAstray(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawService(t)
		if s.Object == nil {
			return
		}
		usable := map[string]bool{}
		for _, one := range s.Slices {
			for _, e := range one.Endpoints {
				if *e.Conditions.Serving {
					usable[e.Addresses[0]+":8080"] = true
				}
			}
		}
		w := newWalker(here, IPv4, map[catalog.Key]Rendering{{Namespace: "ns", Name: "web"}: render(here, s)})
		w.choose = func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
		p := from(podOther, s.Object.Spec.ClusterIP+":80")
		p.protocol = map[v1.Protocol]Protocol{v1.ProtocolTCP: TCP, v1.ProtocolUDP: UDP}[s.Object.Spec.Ports[0].Protocol]
		if v := w.walk(&p); v != dropped && v != rejected && !usable[p.to.String()] {
			t.Fatalf("went to %v of %v", p.to, usable)
		}
	})
}

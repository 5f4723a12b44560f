package proxy

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	discovery "k8s.io/api/discovery/v1"

	v1 "k8s.io/api/core/v1"

	"mend/internal/network/catalog"
	"mend/internal/network/netlab"
)

// numbered is the nth of many Services, with ten endpoints or fewer.
func numbered(n, endpoints int) catalog.Service {
	s := web(func(s *v1.Service) {
		s.Name, s.Spec.ClusterIP = fmt.Sprintf("web-%d", n), netip.AddrFrom4([4]byte{10, 43, byte(n >> 8), byte(n)}).String()
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	})
	one := slice(v1.ProtocolTCP)
	for i := range endpoints {
		one.Endpoints = append(one.Endpoints, ep(fmt.Sprintf("10.%d.%d.%d@there", 50+n>>8, n&255, i+1)))
	}
	return catalog.Service{Object: s, Slices: []*discovery.EndpointSlice{one}}
}

func keyed(s catalog.Service) catalog.Key {
	return catalog.Key{Namespace: s.Object.Namespace, Name: s.Object.Name}
}

// fill gives the kernel n Services with ten endpoints each, at once.
func (p *proxied) fill(n int) time.Duration {
	p.t.Helper()
	start := time.Now()
	all := map[catalog.Key]Rendering{}
	for i := range n {
		s := numbered(i+256, 10)
		all[keyed(s)] = render(p.c, s)
	}
	if err := p.kernel.commit(p.ledger.change(all)); err != nil {
		p.t.Fatal(err)
	}
	return time.Since(start)
}

// oneChange takes an endpoint away or puts it back, from the API's object to the
// kernel's answer.
func (p *proxied) oneChange(round int) time.Duration {
	p.t.Helper()
	s := numbered(256+round%100, 9+round/100%2)
	start := time.Now()
	if err := p.kernel.commit(p.ledger.change(map[catalog.Key]Rendering{keyed(s): render(p.c, s)})); err != nil {
		p.t.Fatal(err)
	}
	return time.Since(start)
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// With 5,000 Services of 10 endpoints a change is in the kernel within 100 ms, and costs
// what it costs with 50; so does a new connection.
func TestCostsDoNotGrow(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short")
	}
	const rounds = 300
	medians := map[int]time.Duration{}
	connects := map[int]time.Duration{}
	for _, n := range []int{50, 5000} {
		l := newLab(t, true)
		l.Serve(l.A, "a", 8080)
		p := l.proxy()
		filled := p.fill(n)
		var changes []time.Duration
		for i := range rounds {
			changes = append(changes, p.oneChange(i))
		}
		p.set(behind(web(), "10.42.0.2@here"))
		var dials []time.Duration
		netlab.In(t, l.C, func() error {
			for range rounds {
				start := time.Now()
				conn, err := netlab.DialHere("10.43.0.10:80")
				if err != nil {
					return err
				}
				dials = append(dials, time.Since(start))
				conn.Close()
			}
			return nil
		})
		medians[n], connects[n] = median(changes), median(dials)
		start := time.Now()
		held, err := p.kernel.read()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d Services: filled in %v, read %d elements in %v; a change takes %v (95%%: %v), a connection %v",
			n, filled, len(held), time.Since(start), medians[n], changes[rounds*95/100], connects[n])
	}
	if medians[5000] > 100*time.Millisecond {
		t.Errorf("a change among 5,000 Services takes %v", medians[5000])
	}
	// Walking 5,000 Services would cost a hundred times what walking 50 does.
	if medians[5000] > 10*medians[50]+time.Millisecond || connects[5000] > 10*connects[50]+time.Millisecond {
		t.Errorf("changes take %v, connections %v", medians, connects)
	}
}

// BenchmarkChange is one endpoint of 5,000 Services' going or coming.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{50, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newLab(b, true).proxy()
			p.fill(n)
			round := 0
			for b.Loop() {
				p.oneChange(round)
				round++
			}
		})
	}
}

// BenchmarkConnection is a new connection and one answer, through a ClusterIP among 5,000
// Services and straight to the Pod.
func BenchmarkConnection(b *testing.B) {
	l := newLab(b, true)
	l.Serve(l.A, "a", 8080)
	p := l.proxy()
	p.fill(5000)
	p.set(behind(web(), "10.42.0.2@here"))
	for name, to := range map[string]string{"ClusterIP": "10.43.0.10:80", "straight": "10.42.0.2:8080"} {
		b.Run(name, func(b *testing.B) {
			netlab.In(b, l.C, func() error {
				for b.Loop() {
					conn, err := netlab.DialHere(to)
					if err != nil {
						return err
					}
					if _, err := netlab.Ask(conn); err != nil {
						return err
					}
					conn.Close()
				}
				return nil
			})
		})
	}
}

// BenchmarkRequest is one answer on an open connection.
func BenchmarkRequest(b *testing.B) {
	l := newLab(b, true)
	l.Serve(l.A, "a", 8080)
	p := l.proxy()
	p.fill(5000)
	p.set(behind(web(), "10.42.0.2@here"))
	for name, to := range map[string]string{"ClusterIP": "10.43.0.10:80", "straight": "10.42.0.2:8080"} {
		b.Run(name, func(b *testing.B) {
			conn, err := l.Dial(l.C, "tcp", to)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			buffer := make([]byte, 64)
			for b.Loop() {
				if _, err := io.WriteString(conn, "hi"); err != nil {
					b.Fatal(err)
				}
				if _, err := conn.Read(buffer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func pool(t *testing.T, dir, subnet string) *Pool {
	t.Helper()
	p, err := Open(dir, netip.MustParsePrefix(subnet))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAddressesAreHandedOutInTurn(t *testing.T) {
	p := pool(t, t.TempDir(), "10.1.2.0/29") // .1 is the gateway, .7 the broadcast address
	reserve := func(id, want string) {
		t.Helper()
		if got, err := p.Reserve(id, "eth0"); err != nil || got.String() != want {
			t.Errorf("Reserve(%s) is %v, %v; want %s", id, got, err, want)
		}
	}
	reserve("a", "10.1.2.2")
	reserve("b", "10.1.2.3")
	reserve("a", "10.1.2.2") // the same again
	if got, err := p.Release("a", "eth0"); err != nil || got.String() != "10.1.2.2" {
		t.Errorf("Release(a) is %v, %v", got, err)
	}
	reserve("c", "10.1.2.4") // not at once the address that came free
	reserve("d", "10.1.2.5")
	reserve("e", "10.1.2.6")
	reserve("f", "10.1.2.2")
	if got, err := p.Reserve("g", "eth0"); !errors.Is(err, ErrExhausted) {
		t.Errorf("with all taken, Reserve is %v, %v; want %v", got, err, ErrExhausted)
	}
	if got, err := p.Release("unknown", "eth0"); err != nil || got.IsValid() {
		t.Errorf("Release of an unknown container is %v, %v", got, err)
	}
}

func TestAnEarlierBootsReservationsAreVoid(t *testing.T) {
	dir := t.TempDir()
	earlier := filepath.Join(dir, "another-boot")
	if err := os.MkdirAll(earlier, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(earlier, "10.1.2.2@old@eth0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := pool(t, dir, "10.1.2.0/30") // room for a single Pod
	if got, err := p.Reserve("new", "eth0"); err != nil || got.String() != "10.1.2.2" {
		t.Errorf("Reserve is %v, %v; want the address of the earlier boot", got, err)
	}
	if _, err := os.Stat(earlier); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the earlier boot's folder is still there: %v", err)
	}
}

func TestRangesAndNamesThatCannotWorkAreRefused(t *testing.T) {
	for _, subnet := range []string{"10.1.2.0/31", "10.1.2.3/32"} {
		if _, err := Open(t.TempDir(), netip.MustParsePrefix(subnet)); err == nil {
			t.Errorf("the range %s was accepted", subnet)
		}
	}
	p := pool(t, t.TempDir(), "10.1.2.0/29")
	for _, id := range []string{"", "a@b", "../x"} {
		if _, err := p.Reserve(id, "eth0"); err == nil {
			t.Errorf("the container id %q was accepted", id)
		}
	}
}

// model is what a pool should have handed out.
type model struct {
	pool *Pool
	room int
	held map[string]netip.Addr
}

func (m *model) release(rt *rapid.T, id string) {
	if got, err := m.pool.Release(id, "eth0"); err != nil || got != m.held[id] {
		rt.Fatalf("Release(%s) is %v, %v; want %v", id, got, err, m.held[id])
	}
	delete(m.held, id)
}

func (m *model) reserve(rt *rapid.T, id string) {
	got, err := m.pool.Reserve(id, "eth0")
	before, again := m.held[id]
	switch {
	case again:
		if err != nil || got != before {
			rt.Fatalf("Reserve(%s) is %v, %v; want %v again", id, got, err, before)
		}
		return
	case len(m.held) == m.room:
		if !errors.Is(err, ErrExhausted) {
			rt.Fatalf("with all %d taken, Reserve is %v, %v", m.room, got, err)
		}
		return
	case err != nil || !m.pool.subnet.Contains(got) || got == m.pool.Gateway():
		rt.Fatalf("Reserve(%s) is %v, %v with %d of %d taken", id, got, err, len(m.held), m.room)
	}
	for other, a := range m.held {
		if a == got {
			rt.Fatalf("%v was given to %s and %s", got, other, id)
		}
	}
	m.held[id] = got
}

// Whatever is reserved and released in whatever order: no address twice, none outside
// the range, and refusal only when the range is full.
func TestNoAddressIsHandedOutTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		subnet := netip.PrefixFrom(netip.MustParseAddr("10.1.2.0"), rapid.IntRange(28, 30).Draw(rt, "bits"))
		p, err := Open(dir, subnet)
		if err != nil {
			rt.Fatal(err)
		}
		// All but the network's, the gateway's and the broadcast address.
		m := &model{pool: p, room: 1<<(32-subnet.Bits()) - 3, held: map[string]netip.Addr{}}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			id := fmt.Sprint(rapid.IntRange(0, 20).Draw(rt, "container"))
			if rapid.Bool().Draw(rt, "release") {
				m.release(rt, id)
			} else {
				m.reserve(rt, id)
			}
		}
	})
}

func TestConcurrentReservationsDiffer(t *testing.T) {
	dir := t.TempDir()
	const pods = 50
	got := make([]netip.Addr, pods)
	var wg sync.WaitGroup
	for i := range pods {
		wg.Go(func() {
			p := pool(t, dir, "10.1.2.0/24") // each a process of its own in real life
			a, err := p.Reserve(fmt.Sprint(i), "eth0")
			if err != nil {
				t.Error(err)
			}
			got[i] = a
		})
	}
	wg.Wait()
	seen := map[netip.Addr]bool{}
	for _, a := range got {
		if seen[a] {
			t.Errorf("%v was handed out twice", a)
		}
		seen[a] = true
	}
}

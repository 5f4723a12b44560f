package network

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mend/internal/network/families"
)

func newLab6(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	if !families.HasIPv6() {
		t.Skip("the kernel has no IPv6")
	}
	l.cfg.IPv6 = true
	return l
}

func at(a netip.Addr, port int) string { return netip.AddrPortFrom(a, uint16(port)).String() }

func TestPodsReachEachOtherInBothFamilies(t *testing.T) {
	l := newLab6(t)
	outside := l.outside()
	outside.serve(t, "80", "outside")
	l.setup()
	one, oneIPs := l.connect("one", "")
	two, twoIPs := l.connect("two", "")
	one.serve(t, "80", "one")
	two.serve(t, "80", "two")
	for i, gateway := range []netip.Addr{l.net.Gateway, l.net.Gateway6} {
		expect(t, nil, at(oneIPs[i], 80), "one for "+gateway.String())
		expect(t, one, at(twoIPs[i], 80), "two for "+oneIPs[i].String())
		expect(t, two, at(oneIPs[i], 80), "one for "+twoIPs[i].String())
		expect(t, one, at(oneIPs[i], 80), "one for "+oneIPs[i].String())
	}
	// Nothing in between has told a Pod of a shorter way.
	for i := range oneIPs {
		expect(t, one, at(twoIPs[i], 80), "two for "+oneIPs[i].String())
		expect(t, two, at(oneIPs[i], 80), "one for "+twoIPs[i].String())
	}
	if !oneIPs[0].Is4() || !l.net.PodCIDR6.Contains(oneIPs[1]) {
		t.Errorf("addresses %v, want IPv4 first and one of %v", oneIPs, l.net.PodCIDR6)
	}
	expect(t, one, "192.0.2.9:80", "outside for 192.0.2.1") // masqueraded
	expect(t, one, "[2001:db8::9]:80", "outside for 2001:db8::1")
	if _, err := l.call("CHECK", "one", one.path, ""); err != nil {
		t.Error(err)
	}
}

func TestHostPortsLeadToTheirPodInBothFamilies(t *testing.T) {
	l := newLab6(t)
	outside := l.outside()
	l.setup()
	one, _ := l.connect("one", `[{"hostPort":8081,"containerPort":80},{"hostPort":8082,"containerPort":80,"hostIP":"2001:db8::1"}]`)
	one.serve(t, "80", "one")
	two, twoIPs := l.connect("two", "")
	expect(t, outside, "192.0.2.1:8081", "one for 192.0.2.9")
	expect(t, outside, "[2001:db8::1]:8081", "one for 2001:db8::9")
	expect(t, outside, "[2001:db8::1]:8082", "one for 2001:db8::9")
	expect(t, nil, "[2001:db8::1]:8081", "one for 2001:db8::1")
	expect(t, two, at(l.net.Gateway6, 8081), "one for "+twoIPs[1].String())
	expect(t, one, at(l.net.Gateway6, 8081), "one for "+l.net.Gateway6.String())
	if got, err := outside.ask("192.0.2.1:8082", time.Second); err == nil {
		t.Errorf("the port on an IPv6 address answered on IPv4: %q", got)
	}
	if got, err := (*space)(nil).ask("[::1]:8081", time.Second); err == nil {
		t.Errorf("::1 led to the Pod: %q", got)
	}
	if _, err := l.call("DEL", "one", "", ""); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"192.0.2.1:8081", "[2001:db8::1]:8081", "[2001:db8::1]:8082"} {
		if got, err := outside.ask(address, time.Second); err == nil {
			t.Errorf("%s of a Pod that is gone answered %q", address, got)
		}
	}
}

// A Pod that an older mend connected goes on after the upgrade, beside new ones.
func TestPodsOfBeforeHaveIPv4Alone(t *testing.T) {
	l := newLab6(t)
	l.cfg.IPv6 = false
	l.setup()
	old, oldIP := l.add("old", `[{"hostPort":8081,"containerPort":80}]`)
	old.serve(t, "80", "old")
	l.cfg.IPv6 = true
	l.setup()
	young, youngIPs := l.connect("young", "")
	young.serve(t, "80", "young")
	expect(t, young, oldIP+":80", "old for "+youngIPs[0].String())
	expect(t, old, at(youngIPs[0], 80), "young for "+oldIP)
	expect(t, nil, at(l.net.Gateway, 8081), "old for "+l.net.Gateway.String())
	for _, command := range []string{"CHECK", "DEL"} {
		if _, err := l.call(command, "old", old.path, ""); err != nil {
			t.Errorf("%s of the old one: %v", command, err)
		}
	}
	// And back: a new Pod is without, and nothing of IPv6 is left on the bridge.
	l.cfg.IPv6 = false
	l.setup()
	if _, addresses := l.connect("late", ""); len(addresses) != 1 {
		t.Errorf("addresses %v", addresses)
	}
	if now := state(t); strings.Contains(now, l.cfg.table()+" of 10") || strings.Contains(now, "fd29:") {
		t.Errorf("left of IPv6:\n%s", now)
	}
}

func TestTeardownLeavesNothingOfIPv6(t *testing.T) {
	l := newLab6(t)
	l.outside()
	link, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	// As if a router had told it.
	told := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(netip.MustParsePrefix("2001:db8:1::/48")), Protocol: unix.RTPROT_RA,
		Gw: netip.MustParseAddr("2001:db8::9").AsSlice()}
	if err := netlink.RouteAdd(told); err != nil {
		t.Fatal(err)
	}
	before := state(t)
	l.setup()
	l.connect("one", `[{"hostPort":8081,"containerPort":80}]`)
	if sysctlNow(t, forwardSysctl6) != "1" || sysctlNow(t, acceptSysctl("uplink")) != "2" {
		t.Fatalf("forwarding %s, accept_ra %s", sysctlNow(t, forwardSysctl6), sysctlNow(t, acceptSysctl("uplink")))
	}
	// Nobody else begins to listen to routers, and the bridge, where Pods are, never does.
	for name, want := range map[string]string{"default": "1", l.net.Bridge: "0"} {
		if got := sysctlNow(t, acceptSysctl(name)); got != want {
			t.Errorf("accept_ra of %s is %s, want %s", name, got, want)
		}
	}
	for range 2 {
		if err := Teardown(t.Context(), l.cfg); err != nil {
			t.Fatal(err)
		}
	}
	if after := state(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if forward, accept := sysctlNow(t, forwardSysctl6), sysctlNow(t, acceptSysctl("uplink")); forward != "0" || accept != "1" {
		t.Errorf("forwarding %s, accept_ra %s, want 0 and 1 as before", forward, accept)
	}
}

// A Pod that claims to be a router is not believed.
func TestPodsTakeNoRoutesFromOthers(t *testing.T) {
	l := newLab6(t)
	l.setup()
	one, _ := l.connect("one", "")
	one.do(func() {
		for _, setting := range []string{"accept_ra", "accept_redirects"} {
			if got := sysctlNow(t, "/proc/sys/net/ipv6/conf/eth0/"+setting); got != "0" {
				t.Errorf("%s is %s", setting, got)
			}
		}
	})
}

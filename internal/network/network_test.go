package network

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
)

func TestPodsHostAndOutsideReachEachOther(t *testing.T) {
	l := newLab(t)
	outside := l.outside()
	outside.serve(t, "80", "outside")
	l.setup()
	one, oneIP := l.add("one", "")
	two, twoIP := l.add("two", "")
	one.serve(t, "80", "one")
	two.serve(t, "80", "two")

	gateway := l.net.Gateway.String()
	expect(t, nil, oneIP+":80", "one for "+gateway)
	expect(t, one, twoIP+":80", "two for "+oneIP)
	expect(t, two, oneIP+":80", "one for "+twoIP)
	expect(t, one, oneIP+":80", "one for "+oneIP)
	expect(t, one, "192.0.2.9:80", "outside for 192.0.2.1") // masqueraded
}

func TestHostPortsLeadToTheirPod(t *testing.T) {
	l := newLab(t)
	outside := l.outside()
	l.setup()
	one, oneIP := l.add("one", `[{"hostPort":8081,"containerPort":80,"protocol":"tcp"},{"hostPort":8082,"containerPort":80,"hostIP":"127.0.0.1"}]`)
	one.serve(t, "80", "one")
	two, twoIP := l.add("two", "")

	gateway := l.net.Gateway.String()
	// The client's address is kept but where the answer could not come back.
	expect(t, outside, "192.0.2.1:8081", "one for 192.0.2.9")
	expect(t, nil, "192.0.2.1:8081", "one for 192.0.2.1")
	expect(t, nil, "127.0.0.1:8081", "one for "+gateway)
	expect(t, nil, "127.0.0.1:8082", "one for "+gateway)
	expect(t, two, gateway+":8081", "one for "+twoIP)
	expect(t, one, gateway+":8081", "one for "+gateway)
	if got, err := outside.ask("192.0.2.1:8082", time.Second); err == nil {
		t.Errorf("the port on 127.0.0.1 answered outside: %q", got)
	}
	_, err := l.call("ADD", "three", newSpace(t).path, `[{"hostPort":8081,"containerPort":80}]`)
	if err == nil || !strings.Contains(err.Error(), "8081 belongs to another Pod") {
		t.Errorf("a port that is taken gave %v", err)
	}
	if _, err := l.call("DEL", "one", "", ""); err != nil {
		t.Fatal(err)
	}
	if got, err := outside.ask("192.0.2.1:8081", time.Second); err == nil {
		t.Errorf("the port of a Pod that is gone answered %q", got)
	}
	_, fourIP := l.add("four", `[{"hostPort":8081,"containerPort":80}]`)
	if fourIP == oneIP || fourIP == twoIP {
		t.Errorf("the new Pod has the address %s at once again", fourIP)
	}
}

func TestCommandsCanBeRepeatedAndChecked(t *testing.T) {
	l := newLab(t)
	l.setup()
	s, _ := l.add("one", "")
	l.add("unwanted", "")
	for _, command := range []string{"CHECK", "STATUS", "GC", "CHECK"} {
		if _, err := l.call(command, "one", s.path, ""); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	if got := state(t); strings.Contains(got, "m0a1b2c-unwant") {
		t.Errorf("GC left the interface of a Pod that is not wanted:\n%s", got)
	}
	for range 2 { // DEL when nothing is left is no error
		if _, err := l.call("DEL", "one", s.path, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.call("CHECK", "one", s.path, ""); err == nil {
		t.Error("CHECK after DEL succeeded")
	}
	if _, err := l.call("ADD", "one", s.path, ""); err != nil {
		t.Errorf("ADD after DEL: %v", err)
	}
}

func TestAFailedAddLeavesNothing(t *testing.T) {
	l := newLab(t)
	l.setup()
	before := state(t)
	s := newSpace(t)
	for what, call := range map[string]struct{ ns, mappings string }{
		"an unknown protocol": {s.path, `[{"hostPort":1,"containerPort":1,"protocol":"carrier-pigeon"}]`},
		"no such namespace":   {"/proc/self/ns/nothing", ""},
	} {
		if out, err := l.call("ADD", "one", call.ns, call.mappings); err == nil {
			t.Errorf("%s: ADD gave %s", what, out)
		}
		if after := state(t); after != before {
			t.Errorf("%s left something on the host:\nbefore:\n%s\nafter:\n%s", what, before, after)
		}
	}
	if _, err := l.call("ADD", "one", s.path, ""); err != nil {
		t.Errorf("a correct ADD afterwards: %v", err)
	}
}

func TestReclaimFreesWhatNoSandboxHas(t *testing.T) {
	l := newLab(t)
	l.setup()
	one, oneIP := l.add("one", "")
	one.serve(t, "80", "one")
	l.add("lost", `[{"hostPort":8081,"containerPort":80}]`)
	if err := l.net.Reclaim([]string{"one", "never-connected"}); err != nil {
		t.Fatal(err)
	}
	expect(t, nil, oneIP+":80", "one for "+l.net.Gateway.String())
	if s := state(t); strings.Contains(s, "m0a1b2c-lost") || !strings.Contains(s, "m0a1b2c-one") {
		t.Errorf("after reclaiming, the host has:\n%s", s)
	}
	l.add("new", `[{"hostPort":8081,"containerPort":80}]`) // the port is free again
}

func TestSetupRepairsAndKeepsItsRange(t *testing.T) {
	l := newLab(t)
	l.setup()
	first := l.net.PodCIDR
	one, oneIP := l.add("one", "")
	one.serve(t, "80", "one")
	// What an administrator's tools may do.
	if err := removeRules(l.cfg.table()); err != nil {
		t.Fatal(err)
	}
	setForwarding(t, "0")
	l.setup()
	if l.net.PodCIDR != first {
		t.Errorf("the range changed from %v to %v", first, l.net.PodCIDR)
	}
	if !strings.Contains(state(t), "table mend-0a1b2c") || forwardingNow(t) != "1" {
		t.Errorf("not repaired (ip_forward is %s):\n%s", forwardingNow(t), state(t))
	}
	expect(t, nil, oneIP+":80", "one for "+l.net.Gateway.String())
}

func TestARangeThatIsTakenIsNotUsed(t *testing.T) {
	l := newLab(t)
	l.setup()
	first := l.net.PodCIDR
	if err := Teardown(t.Context(), l.cfg); err != nil {
		t.Fatal(err)
	}
	l.outside()
	if err := address("uplink", netip.PrefixFrom(first.Addr().Next(), 20).String()); err != nil {
		t.Fatal(err)
	}
	l.setup()
	if l.net.PodCIDR.Overlaps(first) {
		t.Errorf("the range is %v although the machine has a route to %v", l.net.PodCIDR, first)
	}
	l.cfg.PodCIDR = first
	if _, err := Setup(t.Context(), l.cfg); err == nil || !strings.Contains(err.Error(), "overlaps") {
		t.Errorf("a configured range that is taken gave %v", err)
	}
	l.cfg.PodCIDR = netip.MustParsePrefix("fd00::/64")
	if _, err := Setup(t.Context(), l.cfg); err == nil || !strings.Contains(err.Error(), "IPv4") {
		t.Errorf("an IPv6 range gave %v", err)
	}
}

func TestTeardownLeavesNothing(t *testing.T) {
	l := newLab(t)
	before := state(t)
	l.setup()
	l.add("one", `[{"hostPort":8081,"containerPort":80}]`)
	if state(t) == before || forwardingNow(t) != "1" {
		t.Fatal("Setup changed nothing: the test would prove nothing")
	}
	for range 2 {
		if err := Teardown(t.Context(), l.cfg); err != nil {
			t.Fatal(err)
		}
	}
	if after := state(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if got := forwardingNow(t); got != "0" {
		t.Errorf("ip_forward is %s, want 0 as before", got)
	}
	if _, err := os.Stat(l.cfg.RunDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory is left: %v", err)
	}
}

func TestForwardingStaysWhileSomebodyNeedsIt(t *testing.T) {
	l := newLab(t)
	l.setup()
	other := l.cfg
	other.InstanceID, other.DataDir, other.RunDir = "ffffff", l.cfg.DataDir+"2", filepath.Join(filepath.Dir(l.cfg.RunDir), "ffffff")
	if _, err := Setup(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := Teardown(t.Context(), l.cfg); err != nil {
		t.Fatal(err)
	}
	if got := forwardingNow(t); got != "1" {
		t.Errorf("with an instance left, ip_forward is %s", got)
	}
	if err := Teardown(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if got := forwardingNow(t); got != "0" {
		t.Errorf("with no instance left, ip_forward is %s, want 0 as before the first", got)
	}
	// Where an administrator has it on, it stays on.
	setForwarding(t, "1")
	l.setup()
	if err := Teardown(t.Context(), l.cfg); err != nil {
		t.Fatal(err)
	}
	if got := forwardingNow(t); got != "1" {
		t.Errorf("ip_forward is %s, want 1 as the administrator had it", got)
	}
}

func TestAFirewallThatDropsForwardedPacketsIsNoted(t *testing.T) {
	l := newLab(t)
	l.setup()
	if len(l.net.Notes) > 0 {
		t.Errorf("without a firewall there are notes: %q", l.net.Notes)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
		table := c.AddTable(&nftables.Table{Name: "theirs", Family: family})
		policy := nftables.ChainPolicyDrop
		c.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy})
		t.Cleanup(func() {
			c.DelTable(table)
			if err := c.Flush(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	l.setup()
	if len(l.net.Notes) != 2 || !strings.Contains(l.net.Notes[0], "theirs") {
		t.Errorf("the notes are %q, want one for each of two tables", l.net.Notes)
	}
}

package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	forwardSysctl  = "/proc/sys/net/ipv4/ip_forward"
	forwardSysctl6 = "/proc/sys/net/ipv6/conf/all/forwarding"
)

// forwarding remembers that we switched forwarding on, and in which boot.
type forwarding struct {
	BootID string `json:"bootID"`
	// Routed are the interfaces that take their IPv6 routes from routers. A machine that
	// forwards does so only where it is told to (accept_ra 2 instead of 1).
	Routed []string `json:"routed,omitempty"`
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// enableForwarding lets the host route Pods' packets. What it changes is written down
// before it is changed.
func enableForwarding(cfg Config) error {
	if err := switchOn(cfg, forwardSysctl, cfg.forwardFile(), nil); err != nil || !cfg.IPv6 {
		return err
	}
	routed, err := routedInterfaces()
	if err != nil {
		return err
	}
	return switchOn(cfg, forwardSysctl6, cfg.forwardFile6(), routed)
}

func switchOn(cfg Config, sysctl, file string, routed []string) error {
	now, err := os.ReadFile(sysctl)
	if err != nil {
		return fmt.Errorf("read %s: %w", sysctl, err)
	}
	if bytes.Equal(bytes.TrimSpace(now), []byte("1")) {
		return nil
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	b, err := json.Marshal(forwarding{BootID: boot, Routed: routed})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.RunDir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return err
	}
	for _, name := range routed {
		// First: the switch forgets the routes of those that are not told.
		if err := acceptRoutes(name, "2"); err != nil {
			return fmt.Errorf("keep the IPv6 routes of %s: %w", name, err)
		}
	}
	if err := os.WriteFile(sysctl, []byte("1"), 0); err != nil {
		return fmt.Errorf("switch on IP forwarding (%s): %w", sysctl, err)
	}
	return nil
}

func acceptSysctl(name string) string { return "/proc/sys/net/ipv6/conf/" + name + "/accept_ra" }

// acceptRoutes sets from when on an interface takes routes from routers. One that has gone
// needs none.
func acceptRoutes(name, value string) error {
	err := os.WriteFile(acceptSysctl(name), []byte(value), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// routedInterfaces are those that have routes from routers, and take them only while the
// host does not forward. No others: who listens to routers listens to anybody who claims to
// be one, and containers of somebody else's may be behind an interface.
func routedInterfaces() ([]string, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list the machine's IPv6 routes: %w", err)
	}
	var names []string
	for _, r := range routes {
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil || slices.Contains(names, link.Attrs().Name) {
			continue
		}
		if value, err := os.ReadFile(acceptSysctl(link.Attrs().Name)); err == nil && strings.TrimSpace(string(value)) == "1" {
			names = append(names, link.Attrs().Name)
		}
	}
	return names, nil
}

// restoreForwarding switches forwarding off if we switched it on in this boot and no
// other instance's bridge is there. Someone who has come to rely on it since and set
// nothing of his own cannot be seen; that is why only a teardown does this.
func restoreForwarding(cfg Config) error {
	return errors.Join(switchOff(cfg, forwardSysctl, cfg.forwardFile()), switchOff(cfg, forwardSysctl6, cfg.forwardFile6()))
}

func switchOff(cfg Config, sysctl, file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var was forwarding
	boot, err := bootID()
	if err != nil {
		return err
	}
	if json.Unmarshal(b, &was) == nil && was.BootID == boot {
		if othersLeft(cfg) {
			return nil // the last instance finds the file
		}
		if err := os.WriteFile(sysctl, []byte("0"), 0); err != nil {
			return fmt.Errorf("switch IP forwarding off again: %w", err)
		}
		for _, name := range was.Routed {
			if err := acceptRoutes(name, "1"); err != nil {
				return fmt.Errorf("have %s take routes as before: %w", name, err)
			}
		}
	}
	return os.Remove(file)
}

// othersLeft reports whether another instance, or anyone else with a bridge of his
// own, may need forwarding.
func othersLeft(cfg Config) bool {
	links, err := netlink.LinkList()
	if err != nil {
		return true
	}
	for _, l := range links {
		if l.Type() == "bridge" && l.Attrs().Name != cfg.bridge() {
			return true
		}
	}
	return false
}

// inspectHost looks for what would drop Pod traffic and is not ours to change.
func inspectHost() []string {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	var notes []string
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet} {
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			continue // a finding less is no reason to fail
		}
		for _, ch := range chains {
			if dropsForwarded(ch) {
				notes = append(notes, fmt.Sprintf(
					"the firewall drops forwarded packets by default (chain %s of table %s): Pods may not reach other machines; let it accept what comes from and goes to the interfaces mend-*",
					ch.Name, ch.Table.Name))
			}
		}
	}
	return notes
}

func dropsForwarded(ch *nftables.Chain) bool {
	return ch.Type == nftables.ChainTypeFilter && ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookForward &&
		ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop
}

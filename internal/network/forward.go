package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

const forwardSysctl = "/proc/sys/net/ipv4/ip_forward"

// forwarding remembers that we switched forwarding on, and in which boot.
type forwarding struct {
	BootID string `json:"bootID"`
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
	now, err := os.ReadFile(forwardSysctl)
	if err != nil {
		return fmt.Errorf("read ip_forward: %w", err)
	}
	if bytes.Equal(bytes.TrimSpace(now), []byte("1")) {
		return nil
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	b, err := json.Marshal(forwarding{BootID: boot})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.RunDir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(cfg.forwardFile(), b, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(forwardSysctl, []byte("1"), 0); err != nil {
		return fmt.Errorf("switch on IP forwarding (net.ipv4.ip_forward): %w", err)
	}
	return nil
}

// restoreForwarding switches forwarding off if we switched it on in this boot and no
// other instance's bridge is there. Someone who has come to rely on it since and set
// nothing of his own cannot be seen; that is why only a teardown does this.
func restoreForwarding(cfg Config) error {
	b, err := os.ReadFile(cfg.forwardFile())
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
		if err := os.WriteFile(forwardSysctl, []byte("0"), 0); err != nil {
			return fmt.Errorf("switch IP forwarding off again: %w", err)
		}
	}
	return os.Remove(cfg.forwardFile())
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
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
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

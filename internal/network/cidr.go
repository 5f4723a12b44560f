package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// pools are where a Pod range is looked for, in this order: what other distributions
// use as well, so that an administrator recognises it.
var pools = []netip.Prefix{
	netip.MustParsePrefix("10.42.0.0/16"),
	netip.MustParsePrefix("10.244.0.0/16"),
	netip.MustParsePrefix("172.30.0.0/16"),
	netip.MustParsePrefix("192.168.0.0/16"),
}

// podRange is the configured range, or the one chosen earlier, or a new choice.
func podRange(cfg Config) (netip.Prefix, error) {
	if cfg.PodCIDR.IsValid() {
		return checkRange(cfg)
	}
	taken, err := takenRanges(cfg.bridge())
	if err != nil {
		return netip.Prefix{}, err
	}
	taken = append(taken, cfg.Avoid...)
	if b, err := os.ReadFile(cfg.rangeFile()); err == nil {
		kept, err := netip.ParsePrefix(strings.TrimSpace(string(b)))
		if err == nil && overlaps(kept, taken) == nil {
			return kept, nil
		}
		cfg.Log.Warn("the earlier Pod range cannot be used any more; another is chosen", "range", strings.TrimSpace(string(b)))
	} else if !errors.Is(err, os.ErrNotExist) {
		return netip.Prefix{}, err
	}
	chosen, ok := chooseRange(cfg.InstanceID, taken)
	if !ok {
		return netip.Prefix{}, errors.New("every candidate for the Pod range overlaps a route of this machine; name a free one (--pod-cidr)")
	}
	return chosen, os.WriteFile(cfg.rangeFile(), []byte(chosen.String()+"\n"), 0o600)
}

// checkRange refuses a configured range that would cut the host off from something.
func checkRange(cfg Config) (netip.Prefix, error) {
	p := cfg.PodCIDR.Masked()
	if !p.Addr().Is4() || p.Bits() > 29 {
		return p, fmt.Errorf("the Pod range %v must be IPv4 and at least a /29", cfg.PodCIDR)
	}
	taken, err := takenRanges(cfg.bridge())
	if err != nil {
		return p, err
	}
	if other := overlaps(p, taken); other != nil {
		return p, fmt.Errorf("the Pod range %v overlaps %v, to which this machine has a route", p, *other)
	}
	return p, nil
}

// takenRanges are the ranges that the host has routes to or addresses in, without its
// default route and without what belongs to our own bridge.
func takenRanges(ourBridge string) ([]netip.Prefix, error) {
	ours := 0
	if link, err := netlink.LinkByName(ourBridge); err == nil {
		ours = link.Attrs().Index
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list the machine's routes: %w", err)
	}
	var taken []netip.Prefix
	for _, r := range routes {
		if p := toPrefix(r.Dst); r.LinkIndex != ours && p.IsValid() && p.Bits() > 0 {
			taken = append(taken, p)
		}
	}
	return taken, nil
}

// overlaps returns the first range that p meets, or nil.
func overlaps(p netip.Prefix, taken []netip.Prefix) *netip.Prefix {
	for i := range taken {
		if taken[i].Overlaps(p) {
			return &taken[i]
		}
	}
	return nil
}

// chooseRange picks a free /24. Where in a pool the search begins follows from the
// instance's id, so that two instances that start at once do not choose the same.
func chooseRange(instanceID string, taken []netip.Prefix) (netip.Prefix, bool) {
	n, err := strconv.ParseUint(instanceID, 16, 64)
	if err != nil {
		n = 0 // an id that is not hex: start at the first
	}
	for _, pool := range pools {
		for i := range uint64(256) {
			b := pool.Addr().As4()
			b[2] = byte(n + i)
			if p := netip.PrefixFrom(netip.AddrFrom4(b), 24); overlaps(p, taken) == nil {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}

package apiserver

import (
	"net/netip"
	"testing"
)

func TestAddressRange(t *testing.T) {
	for text, want := range map[string]struct {
		first, last string
		size        uint64
		reserved    uint64
	}{
		"10.7.0.0/30":      {"10.7.0.1", "10.7.0.2", 2, 0},
		"10.7.0.0/24":      {"10.7.0.1", "10.7.0.254", 254, 16},
		"10.96.0.0/18":     {"10.96.0.1", "10.96.63.254", 1<<14 - 2, 256},
		"fd00::/112":       {"fd00::1", "fd00::ffff", 1<<16 - 1, 256},
		"fd00::1:fff0/124": {"fd00::1:fff1", "fd00::1:ffff", 15, 0},
		"fd00::/64":        {"fd00::1", "fd00::7fff:ffff:ffff:fffe", 1<<63 - 2, 256},
	} {
		r, ok := newAddressRange(netip.MustParsePrefix(text))
		if !ok || r.size != want.size || r.reserved != want.reserved || r.nth(0).String() != want.first || r.nth(r.size-1).String() != want.last {
			t.Errorf("%s: %+v from %v to %v, want %+v", text, r, r.nth(0), r.nth(r.size-1), want)
		}
	}
	for _, text := range []string{"10.7.0.0/31", "10.7.0.1/32", "fd00::/48", "fd00::/128"} {
		if r, ok := newAddressRange(netip.MustParsePrefix(text)); ok {
			t.Errorf("%s: %+v, want none", text, r)
		}
	}
}

// Every address is tried exactly once, those kept for people last.
func TestCandidates(t *testing.T) {
	r, _ := newAddressRange(netip.MustParsePrefix("10.7.0.0/26")) // 62 addresses, the first 16 kept
	seen := map[netip.Addr]bool{}
	for a := range r.candidates() {
		if seen[a] || !r.prefix.Contains(a) {
			t.Errorf("%v a second time, or outside", a)
		}
		if low := a.As4()[3] <= 16; low != (len(seen) >= 46) {
			t.Errorf("%v as number %d", a, len(seen))
		}
		seen[a] = true
	}
	if len(seen) != 62 {
		t.Errorf("%d addresses", len(seen))
	}
}

func TestParseServiceRanges(t *testing.T) {
	for _, text := range []string{"10.96.0.0/12", "10.96.0.0/18,fd00::/112", "fd00::/112,10.96.0.0/18"} {
		if _, err := parseServiceRanges(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "10.96.0.0", "10.96.0.0/31", "fd00::/48", "10.96.0.0/18,10.97.0.0/18", "10.96.0.0/18,fd00::/112,fd01::/112"} {
		if got, err := parseServiceRanges(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

package network

import (
	"net/netip"
	"os"
	"testing"
)

func TestRangesOfAnInstanceAreItsOwn(t *testing.T) {
	seen := map[netip.Prefix]string{}
	local := netip.MustParsePrefix("fd00::/8") // RFC 4193, locally assigned
	for _, id := range []string{"000000", "000001", "0a1b2c", "ffffff"} {
		pods, services := subnet6(id, podSubnet, 64), subnet6(id, serviceSubnet, serviceBits6)
		for _, p := range []netip.Prefix{pods, services} {
			if other, taken := seen[p]; taken || !local.Contains(p.Addr()) || p != p.Masked() || !localPrefix(id).Contains(p.Addr()) {
				t.Errorf("%s has %v, which %q has too or which is not local", id, p, other)
			}
			seen[p] = id
		}
		if pods.Overlaps(services) {
			t.Errorf("%v overlaps %v", pods, services)
		}
	}
	if got := subnet6("0a1b2c", podSubnet, 64); got != subnet6("0a1b2c", podSubnet, 64) || got.String() != "fd29:454d:952:1::/64" {
		t.Errorf("Pods of 0a1b2c have %v: addresses must not change with the version of mend", got)
	}
}

func TestServiceRange6Stays(t *testing.T) {
	cfg := Config{InstanceID: "0000a1", DataDir: t.TempDir()}
	first, err := ServiceRange6(cfg)
	if err != nil || first.Bits() != 112 {
		t.Fatal(first, err)
	}
	cfg.InstanceID = "0000a2" // a data directory that got another id
	if again, err := ServiceRange6(cfg); err != nil || again != first {
		t.Errorf("the second time %v, %v, want %v", again, err, first)
	}
	if err := os.WriteFile(cfg.serviceFile6(), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ServiceRange6(cfg); err == nil {
		t.Errorf("%v from a damaged file, want an error", got)
	}
}

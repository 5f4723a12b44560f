package network

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Subnets of an instance's own /48. A machine of several nodes would count on from
// podSubnet.
const (
	podSubnet     = 1
	serviceSubnet = 0xffff
)

// serviceBits6 is the length of an IPv6 range of Services: 65,535 addresses.
const serviceBits6 = 112

// localPrefix is the instance's own prefix out of RFC 4193's: fd, 40 bits that look random,
// and from there on subnets of our choice. They follow from the instance's id, so that two
// instances, also of two machines, do not meet.
func localPrefix(instanceID string) netip.Prefix {
	sum := sha256.Sum256([]byte("mend instance " + instanceID))
	raw := [16]byte{0: 0xfd}
	copy(raw[1:6], sum[:])
	return netip.PrefixFrom(netip.AddrFrom16(raw), 48)
}

// subnet6 is the instance's subnet number n, of the given length.
func subnet6(instanceID string, n uint16, bits int) netip.Prefix {
	raw := localPrefix(instanceID).Addr().As16()
	raw[6], raw[7] = byte(n>>8), byte(n)
	return netip.PrefixFrom(netip.AddrFrom16(raw), bits)
}

func (c Config) serviceFile6() string { return filepath.Join(c.cniDir(), "servicecidr6") }

// ServiceRange6 is the instance's range of IPv6 Service addresses. As [ServiceRange], it
// stays what it was when it was first asked for.
func ServiceRange6(cfg Config) (netip.Prefix, error) {
	b, err := os.ReadFile(cfg.serviceFile6())
	if err == nil {
		kept, err := netip.ParsePrefix(strings.TrimSpace(string(b)))
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%s: %w", cfg.serviceFile6(), err)
		}
		return kept, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return netip.Prefix{}, err
	}
	if err := os.MkdirAll(cfg.cniDir(), 0o700); err != nil {
		return netip.Prefix{}, err
	}
	chosen := subnet6(cfg.InstanceID, serviceSubnet, serviceBits6)
	return chosen, writeDurably(cfg.serviceFile6(), chosen.String()+"\n")
}

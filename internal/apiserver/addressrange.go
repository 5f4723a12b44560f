package apiserver

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"strings"

	"k8s.io/kubernetes/pkg/apis/core"
)

// addressRange is a CIDR from which Services get addresses: all but the network's own
// and, of IPv4, the broadcast address. Upstream keeps the low part for those who ask for
// an address by themselves as long as there are others.
type addressRange struct {
	prefix         netip.Prefix
	size, reserved uint64
}

// newAddressRange returns false for what no address can be given from. As upstream, it
// does not take IPv6 ranges shorter than a /64.
func newAddressRange(prefix netip.Prefix) (addressRange, bool) {
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	if !prefix.IsValid() || hostBits > 64 || hostBits < 1 {
		return addressRange{}, false
	}
	total := uint64(math.MaxInt64)
	if hostBits < 63 {
		total = 1 << hostBits
	}
	// 10.7.0.0/29 has 8 addresses: 6 to give away, none of them reserved.
	r := addressRange{prefix: prefix.Masked(), size: total - 1, reserved: uint64(reserve(int(min(total, 1<<32)), 16, 256))}
	if prefix.Addr().Is4() {
		r.size--
	}
	return r, r.size > 0
}

// nth is the address number n, counted from 0 behind the network's own.
func (r addressRange) nth(n uint64) netip.Addr {
	raw := r.prefix.Addr().As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(raw[8:]), n+1, 0)
	binary.BigEndian.PutUint64(raw[8:], low)
	binary.BigEndian.PutUint64(raw[:8], binary.BigEndian.Uint64(raw[:8])+carry)
	if r.prefix.Addr().Is4() {
		return netip.AddrFrom16(raw).Unmap()
	}
	return netip.AddrFrom16(raw)
}

// candidates are all addresses, in the order in which they are tried: from a random one
// on, since one that was just released should not come back while somebody still
// remembers who had it; those that are reserved last.
func (r addressRange) candidates() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, part := range [][2]uint64{{r.reserved, r.size}, {0, r.reserved}} {
			first, size := part[0], part[1]-part[0]
			if size == 0 {
				continue
			}
			start := rand.Uint64N(size)
			for i := range size {
				if !yield(r.nth(first + (start+i)%size)) {
					return
				}
			}
		}
	}
}

// parseServiceRanges reads Config.ServiceClusterIPRange.
func parseServiceRanges(text string) ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		prefix, err := netip.ParsePrefix(part)
		if err == nil {
			if _, ok := newAddressRange(prefix); !ok || prefix.Addr().BitLen()-prefix.Bits() < 2 {
				err = fmt.Errorf("%v holds too few addresses, or too many", prefix)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("apiserver: ServiceClusterIPRange %q must be a range of at least 4 addresses, for IPv6 at most a /64: %w", text, err)
		}
		ranges = append(ranges, prefix.Masked())
	}
	if len(ranges) > 2 || len(ranges) == 2 && familyOf(ranges[0].Addr()) == familyOf(ranges[1].Addr()) {
		return nil, fmt.Errorf("apiserver: ServiceClusterIPRange %q must be one range, or one of each family", text)
	}
	return ranges, nil
}

func familyOf(a netip.Addr) core.IPFamily {
	if a.Is4() {
		return core.IPv4Protocol
	}
	return core.IPv6Protocol
}

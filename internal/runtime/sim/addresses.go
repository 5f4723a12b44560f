package sim

import (
	"errors"
	"net/netip"
)

// defaultRange is used when no Pod range is given.
var defaultRange = netip.MustParsePrefix("10.244.0.0/16")

// addresses hands out each address of a range once until it is released. The
// network address, the first host address (a bridge would own it) and the
// broadcast address stay free, as on a real node. Addresses are taken in order
// and reused late, so that a new Pod rarely gets the address of one just gone.
type addresses struct {
	within netip.Prefix
	last   netip.Addr
	used   map[netip.Addr]bool
}

func newAddresses(within netip.Prefix) *addresses {
	if !within.IsValid() {
		within = defaultRange
	}
	within = within.Masked()
	return &addresses{within: within, last: within.Addr().Next(), used: map[netip.Addr]bool{}}
}

func (a *addresses) take() (netip.Addr, error) {
	first := a.within.Addr().Next().Next()
	for candidate, wrapped := a.last.Next(), false; ; candidate = candidate.Next() {
		// The last address of the range has its successor outside.
		if !a.within.Contains(candidate) || !a.within.Contains(candidate.Next()) {
			if wrapped || !a.within.Contains(first) {
				return netip.Addr{}, errors.New("no free address in range " + a.within.String())
			}
			candidate, wrapped = first, true
		}
		if !a.used[candidate] {
			a.used[candidate] = true
			a.last = candidate
			return candidate, nil
		}
	}
}

func (a *addresses) release(address netip.Addr) { delete(a.used, address) }

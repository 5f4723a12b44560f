package apiserver

import (
	"fmt"
	"net/netip"
)

// firstServiceIP is the address of default/kubernetes.
func firstServiceIP(cidr string) (netip.Addr, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("service cluster IP range: %w", err)
	}
	return prefix.Masked().Addr().Next(), nil
}

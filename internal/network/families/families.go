// Package families tells which IP families this machine has. It needs nothing of the
// network, so that every system builds it.
package families

import (
	"os"
	"strings"
)

// HasIPv6 says whether new interfaces of this machine can have IPv6 addresses: the kernel
// knows the family, and nobody has switched it off. It is false where the kernel is not
// Linux.
func HasIPv6() bool {
	for _, scope := range []string{"all", "default"} {
		off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + scope + "/disable_ipv6")
		if err != nil || strings.TrimSpace(string(off)) != "0" {
			return false
		}
	}
	return true
}

package plugin

import "golang.org/x/sys/unix"

// What netlink answers when there is no such device (any more), and when the kernel
// has no IPv6.
var (
	errNoDevice error = unix.ENODEV
	errNoIPv6   error = unix.EAFNOSUPPORT
)

package plugin

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"mend/internal/network/ipam"
)

// The bridge has no link-local IPv6 address, from which the kernel would ask for a Pod's
// hardware address. It need not ask: the hardware address follows from the Pod's.

// introduce tells the bridge the hardware address of a Pod's IPv6 address.
func introduce(bridge int, addresses []netip.Addr) error {
	for _, a := range addresses {
		if !a.Is6() {
			continue
		}
		if err := netlink.NeighSet(neighbour(bridge, a)); err != nil {
			return fmt.Errorf("tell the bridge where %v is: %w", a, err)
		}
	}
	return nil
}

// dismiss takes back what introduce has told. A bridge that is gone knows nothing.
func dismiss(bridge string, addresses []netip.Addr) error {
	for _, a := range addresses {
		if !a.Is6() {
			continue
		}
		link, err := netlink.LinkByName(bridge)
		if err == nil {
			err = netlink.NeighDel(neighbour(link.Attrs().Index, a))
		}
		var gone netlink.LinkNotFoundError
		if err != nil && !errors.As(err, &gone) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("have the bridge forget %v: %w", a, err)
		}
	}
	return nil
}

func neighbour(bridge int, a netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: bridge, Family: netlink.FAMILY_V6, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: hardwareAddr(a)}
}

// Introduce tells the bridge of every Pod that has an address. An older mend has left some
// without an IPv6 address; they do not mind.
func Introduce(conf *Conf, pool *ipam.Pool) error {
	link, err := netlink.LinkByName(conf.Bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", conf.Bridge, err)
	}
	all, err := pool.List()
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := introduce(link.Attrs().Index, conf.addresses(r.Address)); err != nil {
			return err
		}
	}
	return nil
}

// trustNobody has the Pod's interface take neither routes nor shorter ways from others: any
// Pod on the bridge could claim to be a router.
func trustNobody(ns netns.NsHandle, ifname string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := netns.Set(ns)
		for _, setting := range []string{"accept_ra", "accept_redirects"} {
			if err == nil {
				err = os.WriteFile("/proc/sys/net/ipv6/conf/"+ifname+"/"+setting, []byte("0"), 0)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("have %s in the Pod take no routes from others: %w", ifname, err)
	}
	return nil
}

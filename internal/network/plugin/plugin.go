// Package plugin is mend's CNI plugin: it puts a Pod's network namespace on the
// instance's bridge. cmd/mend-cni is its program.
//
// ADD is on the way of every Pod that starts, so it starts no process, waits for no
// sysctl and does what it can in one netlink message: the interface pair is created
// with both ends named, addressed and placed. IPv6 link-local addresses, whose
// duplicate detection would keep an address tentative for a second, are switched off
// on both ends.
package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"mend/internal/network/hostport"
	"mend/internal/network/ipam"
)

// Conf is the plugin's configuration, one per instance.
type Conf struct {
	types.NetConf
	// Instance is the instance's id; interface and table names carry it.
	Instance string `json:"instance"`
	// Bridge is the name of the instance's bridge.
	Bridge string `json:"bridge"`
	// Table is the name of the instance's nftables table.
	Table string `json:"table"`
	// Subnet is the node's Pod range; its first address is the bridge's.
	Subnet netip.Prefix `json:"subnet"`
	// Subnet6 is the node's IPv6 range, a /64 whose first address is the bridge's. The zero
	// value: Pods have IPv4 alone.
	Subnet6 netip.Prefix `json:"subnet6,omitzero"`
	// MTU is that of the Pods' interfaces, in bytes.
	MTU int `json:"mtu"`
	// IPAM is the folder of the address reservations.
	IPAMDir string `json:"ipamDir"`

	RuntimeConfig struct {
		PortMappings []hostport.Mapping `json:"portMappings,omitempty"`
	} `json:"runtimeConfig,omitempty"`

	// GC passes the attachments that are still wanted.
	ValidAttachments []types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`
}

// Main runs the plugin as CNI defines it: the command in the environment, the
// configuration on standard input, the result on standard output.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    func(a *skel.CmdArgs) error { return withConf(a, add) },
		Del:    func(a *skel.CmdArgs) error { return withConf(a, del) },
		Check:  func(a *skel.CmdArgs) error { return withConf(a, check) },
		GC:     func(a *skel.CmdArgs) error { return withConf(a, gc) },
		Status: func(a *skel.CmdArgs) error { return withConf(a, status) },
	}, version.All, "mend-cni puts Pods on mend's bridge")
}

// withConf parses the configuration and runs one command.
func withConf(args *skel.CmdArgs, run func(*skel.CmdArgs, *Conf, *ipam.Pool) error) error {
	var conf Conf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "the network configuration cannot be read", err.Error())
	}
	if conf.Bridge == "" || conf.IPAMDir == "" || conf.Table == "" || len(conf.Instance) != 6 {
		return types.NewError(types.ErrInvalidNetworkConfig, "instance, bridge, table and ipamDir are needed", "")
	}
	pool, err := ipam.Open(conf.IPAMDir, conf.Subnet)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "the address pool cannot be opened", err.Error())
	}
	return run(args, &conf, pool)
}

// hostLink names the host's end: at most 15 characters, unique on the machine.
func hostLink(instance, containerID string) string {
	return "m" + instance + "-" + containerID[:min(7, len(containerID))]
}

// hardwareAddr derives the Pod's MAC from its address, so that a neighbour's cache
// entry stays right when the address is used again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	b := a.As16()
	return net.HardwareAddr{0x0a, 0x58, b[12], b[13], b[14], b[15]}
}

// addresses are a Pod's: the one that is reserved, and behind it its IPv6 address. This one
// ends in the first, so it needs no reservation of its own, and is as unique and as long
// unused as that: 10.42.69.2 goes with fd…:1::a2a:4502.
func (c *Conf) addresses(reserved netip.Addr) []netip.Addr {
	if !c.Subnet6.IsValid() || !reserved.Is4() {
		return []netip.Addr{reserved}
	}
	raw, low := c.Subnet6.Masked().Addr().As16(), reserved.As4()
	copy(raw[12:], low[:])
	return []netip.Addr{reserved, netip.AddrFrom16(raw)}
}

// gateway is the bridge's address of the same family.
func (c *Conf) gateway(a netip.Addr) netip.Addr {
	if a.Is6() {
		return ipam.Gateway(c.Subnet6)
	}
	return ipam.Gateway(c.Subnet)
}

func add(args *skel.CmdArgs, conf *Conf, pool *ipam.Pool) (err error) {
	bridge, err := netlink.LinkByName(conf.Bridge)
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("bridge %s: %v", conf.Bridge, err), "")
	}
	ns, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("open network namespace %s: %v", args.Netns, err), "")
	}
	defer ns.Close()
	address, err := pool.Reserve(args.ContainerID, args.IfName)
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	host := hostLink(conf.Instance, args.ContainerID)
	defer func() {
		if err != nil {
			err = errors.Join(err, undo(args, conf, pool, host))
		}
	}()
	mac, err := connect(conf, bridge.Attrs().Index, ns, host, args.IfName, address)
	if err != nil {
		return err
	}
	addresses := conf.addresses(address)
	if err := introduce(bridge.Attrs().Index, addresses); err != nil {
		return err
	}
	if conf.Subnet6.IsValid() {
		if err := trustNobody(ns, args.IfName); err != nil {
			return err
		}
	}
	if err := configure(conf, ns, args.IfName, addresses); err != nil {
		return err
	}
	if err := hostport.Add(conf.Table, addresses, conf.RuntimeConfig.PortMappings); err != nil {
		return err
	}
	return types.PrintResult(result(conf, args, host, mac, addresses), conf.CNIVersion)
}

func undo(args *skel.CmdArgs, conf *Conf, pool *ipam.Pool, host string) error {
	if err := removeLink(host); err != nil {
		return err
	}
	address, err := pool.Release(args.ContainerID, args.IfName)
	if err != nil || !address.IsValid() {
		return err
	}
	return forget(conf, address)
}

// forget removes what leads to a Pod's addresses.
func forget(conf *Conf, reserved netip.Addr) error {
	addresses := conf.addresses(reserved)
	return errors.Join(hostport.Remove(conf.Table, addresses...), dismiss(conf.Bridge, addresses))
}

// connect creates the pair of interfaces, the Pod's end in its namespace and the
// host's end on the bridge and up. It returns the Pod's hardware address.
func connect(conf *Conf, bridge int, ns netns.NsHandle, host, ifname string, address netip.Addr) (net.HardwareAddr, error) {
	mac := hardwareAddr(address)
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: host, MTU: conf.MTU, TxQLen: -1},
		PeerName:         ifname,
		PeerNamespace:    netlink.NsFd(int(ns)),
		PeerHardwareAddr: mac,
		PeerMTU:          uint32(conf.MTU),
	}
	err := netlink.LinkAdd(veth)
	if errors.Is(err, os.ErrExist) {
		// Ours by its name: left by an ADD that was killed.
		if err = removeLink(host); err == nil {
			err = netlink.LinkAdd(veth)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create interface %s: %w", host, err)
	}
	link, err := netlink.LinkByName(host)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", host, err)
	}
	if err := quietIPv6(netlink.LinkSetIP6AddrGenMode, link); err != nil {
		return nil, fmt.Errorf("interface %s: %w", host, err)
	}
	if err := netlink.LinkSetMasterByIndex(link, bridge); err != nil {
		return nil, fmt.Errorf("put interface %s on the bridge: %w", host, err)
	}
	// A Pod reaches itself through its own Service or host port.
	if err := netlink.LinkSetHairpin(link, true); err != nil {
		return nil, fmt.Errorf("set hairpin mode of %s: %w", host, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set interface %s up: %w", host, err)
	}
	return mac, nil
}

// addrGenModeNone: no link-local address is made when the interface goes up.
const addrGenModeNone = 1

func quietIPv6(set func(netlink.Link, int) error, link netlink.Link) error {
	err := set(link, addrGenModeNone)
	if errors.Is(err, os.ErrInvalid) || errors.Is(err, errNoIPv6) {
		return nil // a kernel without IPv6 has none to switch off
	}
	return err
}

// configure addresses the Pod's end, sets it up and gives it its routes. An address is
// alone in its range, so that every packet passes the node: it must see the answers of
// connections whose destination it has rewritten.
func configure(conf *Conf, ns netns.NsHandle, ifname string, addresses []netip.Addr) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter the Pod's network namespace: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("find interface %s in the Pod: %w", ifname, err)
	}
	if err := quietIPv6(h.LinkSetIP6AddrGenMode, link); err != nil {
		return fmt.Errorf("interface %s in the Pod: %w", ifname, err)
	}
	for _, address := range addresses {
		a := &netlink.Addr{IPNet: alone(address)}
		if address.Is6() {
			a.Flags = unix.IFA_F_NODAD // nobody else can have it: do not wait a second to see
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("set the Pod's address %v: %w", address, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set interface %s up in the Pod: %w", ifname, err)
	}
	for _, address := range addresses {
		gateway := conf.gateway(address)
		if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: alone(gateway), Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("set the Pod's route to its gateway: %w", err)
		}
		if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everything(address), Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("set the Pod's default route: %w", err)
		}
	}
	return nil
}

// everything is the range of all addresses of a family.
func everything(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
}

// alone is the range that holds just one address.
func alone(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func result(conf *Conf, args *skel.CmdArgs, host string, mac net.HardwareAddr, addresses []netip.Addr) *current.Result {
	pod := 1
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: host},
			{Name: args.IfName, Mac: mac.String(), Sandbox: args.Netns, Mtu: conf.MTU},
		},
	}
	for _, address := range addresses {
		gateway := conf.gateway(address)
		r.IPs = append(r.IPs, &current.IPConfig{Interface: &pod, Address: *alone(address), Gateway: gateway.AsSlice()})
		r.Routes = append(r.Routes, &types.Route{Dst: *alone(gateway)}, &types.Route{Dst: *everything(address), GW: gateway.AsSlice()})
	}
	return r
}

// del succeeds when there is nothing (left) to remove, as CNI wants it. It does not
// enter the namespace, which may be gone: the pair goes when its host end goes.
func del(args *skel.CmdArgs, conf *Conf, pool *ipam.Pool) error {
	return undo(args, conf, pool, hostLink(conf.Instance, args.ContainerID))
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var gone netlink.LinkNotFoundError
	if err == nil || errors.As(err, &gone) || errors.Is(err, errNoDevice) {
		return nil
	}
	return fmt.Errorf("remove interface %s: %w", name, err)
}

// check finds the Pod's interface and its address where ADD left them.
func check(args *skel.CmdArgs, conf *Conf, pool *ipam.Pool) error {
	all, err := pool.List()
	if err != nil {
		return err
	}
	var want netip.Addr
	for _, r := range all {
		if r.ContainerID == args.ContainerID && r.Interface == args.IfName {
			want = r.Address
		}
	}
	if !want.IsValid() {
		return fmt.Errorf("container %s has no address", args.ContainerID)
	}
	if _, err := netlink.LinkByName(hostLink(conf.Instance, args.ContainerID)); err != nil {
		return fmt.Errorf("the host's end of the Pod's interface: %w", err)
	}
	ns, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(args.IfName)
	if err != nil {
		return fmt.Errorf("the Pod's interface: %w", err)
	}
	// One that an older mend has connected has IPv4 alone.
	addresses, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if got, ok := netip.AddrFromSlice(a.IP.To4()); ok && got == want {
			return nil
		}
	}
	return fmt.Errorf("the Pod's interface lacks its address %v", want)
}

// gc frees what belongs to no attachment that is still wanted.
func gc(_ *skel.CmdArgs, conf *Conf, pool *ipam.Pool) error {
	wanted := map[types.GCAttachment]bool{}
	for _, a := range conf.ValidAttachments {
		wanted[types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	return Reclaim(conf, pool, func(r ipam.Reservation) bool {
		return wanted[types.GCAttachment{ContainerID: r.ContainerID, IfName: r.Interface}]
	})
}

// Reclaim frees the address, the interface and the host ports of every reservation
// that is not wanted any more.
func Reclaim(conf *Conf, pool *ipam.Pool, wanted func(ipam.Reservation) bool) error {
	freed, err := pool.ReleaseIf(func(r ipam.Reservation) bool { return !wanted(r) })
	for _, r := range freed {
		err = errors.Join(err,
			removeLink(hostLink(conf.Instance, r.ContainerID)),
			forget(conf, r.Address))
	}
	return err
}

// status says whether an ADD could succeed.
func status(_ *skel.CmdArgs, conf *Conf, _ *ipam.Pool) error {
	if _, err := netlink.LinkByName(conf.Bridge); err != nil {
		const pluginNotAvailable = 50
		return types.NewError(pluginNotAvailable, fmt.Sprintf("bridge %s: %v", conf.Bridge, err), "")
	}
	return nil
}

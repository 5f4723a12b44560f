package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mend/internal/network/ipam"
	"mend/internal/network/plugin"
	"mend/internal/runtime/cleanup"
)

// Config says whose network to build.
type Config struct {
	// InstanceID is six hex digits; every name carries it.
	InstanceID string
	// PodCIDR is the node's Pod range (IPv4). The zero value lets Setup choose one and
	// keep to it at later starts while it stays free.
	PodCIDR netip.Prefix
	// IPv6 gives Pods an IPv6 address too, out of a range that follows from the instance's id.
	IPv6 bool
	// Avoid lists ranges that a chosen one must not overlap, such as the Services'.
	Avoid []netip.Prefix
	// DataDir holds the chosen range and the CNI configuration, below "cni".
	DataDir string
	// RunDir holds the address reservations, below "ipam".
	RunDir string
	Log    *slog.Logger
}

func (c Config) bridge() string    { return "mend-" + c.InstanceID }
func (c Config) table() string     { return "mend-" + c.InstanceID }
func (c Config) cniDir() string    { return filepath.Join(c.DataDir, "cni") }
func (c Config) ipamDir() string   { return filepath.Join(c.RunDir, "ipam") }
func (c Config) rangeFile() string { return filepath.Join(c.cniDir(), "podcidr") }

// These are shared by all instances: the last to go restores.
func (c Config) forwardFile() string  { return filepath.Join(filepath.Dir(c.RunDir), "ip_forward") }
func (c Config) forwardFile6() string { return filepath.Join(filepath.Dir(c.RunDir), "ip6_forward") }

// Network is a node's network as Setup left it.
type Network struct {
	// PodCIDR is the node's Pod range and Gateway its first address, the bridge's.
	PodCIDR netip.Prefix
	Gateway netip.Addr
	// PodCIDR6 and Gateway6 are the same of IPv6; the zero values where Pods have none.
	PodCIDR6 netip.Prefix
	Gateway6 netip.Addr
	// Bridge is the bridge's name.
	Bridge string
	// ConfDir holds the CNI configuration for the container runtime.
	ConfDir string
	// MTU is that of the Pods' interfaces, in bytes.
	MTU int
	// Notes are findings about the host that may break Pod traffic and that mend does
	// not change by itself; one sentence each.
	Notes []string

	conf plugin.Conf
}

// Setup builds the network, or what is missing of it, and writes the CNI
// configuration. It needs CAP_NET_ADMIN. It takes a few milliseconds.
func Setup(ctx context.Context, cfg Config) (*Network, error) {
	if len(cfg.InstanceID) != 6 {
		return nil, fmt.Errorf("the instance id %q is not six characters long", cfg.InstanceID)
	}
	if err := os.MkdirAll(cfg.cniDir(), 0o700); err != nil {
		return nil, err
	}
	cidr, err := podRange(cfg)
	if err != nil {
		return nil, err
	}
	n := &Network{
		PodCIDR: cidr,
		Gateway: ipam.Gateway(cidr),
		Bridge:  cfg.bridge(),
		ConfDir: filepath.Join(cfg.cniDir(), "conf"),
		MTU:     hostMTU(),
	}
	if cfg.IPv6 {
		n.PodCIDR6 = subnet6(cfg.InstanceID, podSubnet, 64)
		n.Gateway6 = ipam.Gateway(n.PodCIDR6)
	}
	if err := ensureBridge(n); err != nil {
		return nil, err
	}
	if err := applyRules(cfg.table(), n); err != nil {
		return nil, err
	}
	if err := enableForwarding(cfg); err != nil {
		return nil, err
	}
	if err := n.writeConf(cfg); err != nil {
		return nil, err
	}
	if err := n.introduce(); err != nil {
		return nil, err
	}
	n.Notes = inspectHost()
	for _, note := range n.Notes {
		cfg.Log.WarnContext(ctx, note)
	}
	return n, nil
}

// Teardown removes what Setup and the plugin made on the host, in whatever state it
// is. The chosen range stays known in the data directory. It is no error when nothing
// is there.
func Teardown(_ context.Context, cfg Config) error {
	return errors.Join(
		removePodLinks(cfg),
		removeBridge(cfg.bridge()),
		removeRules(cfg.table()),
		restoreForwarding(cfg),
		cleanup.RemoveTree(cfg.ipamDir()),
		cleanup.RemoveEmpty(cfg.RunDir, cfg.InstanceID),
		cleanup.RemoveEmpty(filepath.Dir(cfg.RunDir), "mend"),
	)
}

// Reclaim frees the addresses, interfaces and host ports of Pod sandboxes that the
// runtime does not know: those of an ADD whose containerd was killed before it could
// write down its sandbox. live holds the ids of all sandboxes, ready or not.
func (n *Network) Reclaim(live []string) error {
	pool, err := ipam.Open(n.conf.IPAMDir, n.PodCIDR)
	if err != nil {
		return err
	}
	known := make(map[string]bool, len(live))
	for _, id := range live {
		known[id] = true
	}
	return plugin.Reclaim(&n.conf, pool, func(r ipam.Reservation) bool { return known[r.ContainerID] })
}

// introduce makes the Pods that are there known to the bridge, which may be a new one.
func (n *Network) introduce() error {
	if !n.PodCIDR6.IsValid() {
		return nil
	}
	pool, err := ipam.Open(n.conf.IPAMDir, n.PodCIDR)
	if err != nil {
		return err
	}
	return plugin.Introduce(&n.conf, pool)
}

// hostMTU is the MTU of the interface that the default route uses, or Ethernet's.
func hostMTU() int {
	const ethernet = 1500
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return ethernet
	}
	for _, r := range routes {
		if !isDefault(r) {
			continue
		}
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			return min(link.Attrs().MTU, ethernet)
		}
	}
	return ethernet
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// ensureBridge creates the bridge or corrects the one that is there.
func ensureBridge(n *Network) error {
	link, err := netlink.LinkByName(n.Bridge)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		// A fixed hardware address: the bridge would else take the lowest of its ports'
		// and change it as Pods come and go, which cuts connections.
		g := n.Gateway.As4()
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{
			Name: n.Bridge, MTU: n.MTU, TxQLen: -1,
			HardwareAddr: net.HardwareAddr{0x0a, 0x58, g[0], g[1], g[2], g[3]},
		}}
		if err = netlink.LinkAdd(bridge); err == nil || errors.Is(err, os.ErrExist) {
			link, err = netlink.LinkByName(n.Bridge)
		}
	}
	if err != nil {
		return fmt.Errorf("create the bridge %s: %w", n.Bridge, err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("the interface %s is there already and is no bridge", n.Bridge)
	}
	const none = 1 // no link-local address, no duplicate detection
	if err := netlink.LinkSetIP6AddrGenMode(link, none); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	if err := ensureAddresses(link, netlink.FAMILY_V4, netip.PrefixFrom(n.Gateway, n.PodCIDR.Bits())); err != nil {
		return err
	}
	var six []netip.Prefix
	if n.Gateway6.IsValid() {
		// No link-local address: from it the kernel would tell Pods of a shorter way to each
		// other, on which answers do not pass here to be translated back.
		six = []netip.Prefix{netip.PrefixFrom(n.Gateway6, n.PodCIDR6.Bits())}
	}
	if err := ensureAddresses(link, netlink.FAMILY_V6, six...); err != nil {
		return err
	}
	if n.Gateway6.IsValid() {
		// A Pod that claims to be a router must not become the host's.
		if err := acceptRoutes(n.Bridge, "0"); err != nil {
			return fmt.Errorf("bridge %s: %w", n.Bridge, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the bridge %s up: %w", n.Bridge, err)
	}
	// A host port on 127.0.0.1 leads to a Pod. The rules keep Pods from using this the
	// other way round.
	path := "/proc/sys/net/ipv4/conf/" + n.Bridge + "/route_localnet"
	if err := os.WriteFile(path, []byte("1"), 0); err != nil {
		return fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	return nil
}

// ensureAddresses gives the bridge exactly these addresses of a family.
func ensureAddresses(link netlink.Link, family int, want ...netip.Prefix) error {
	addresses, err := netlink.AddrList(link, family)
	if err != nil {
		return fmt.Errorf("list the bridge's addresses: %w", err)
	}
	have := map[netip.Prefix]bool{}
	for _, a := range addresses {
		if p := toPrefix(a.IPNet); slices.Contains(want, p) {
			have[p] = true
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("remove the bridge's earlier address %v: %w", a.IPNet, err)
		}
	}
	for _, p := range want {
		if have[p] {
			continue
		}
		a := &netlink.Addr{IPNet: toIPNet(p)}
		if family == netlink.FAMILY_V6 {
			a.Flags = unix.IFA_F_NODAD // at once, and also while the bridge has no port yet
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("set the bridge's address %v: %w", p, err)
		}
	}
	return nil
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// toPrefix is the zero value for a nil network.
func toPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

func removeBridge(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var missing netlink.LinkNotFoundError
	if err == nil || errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("remove the bridge %s: %w", name, err)
}

// removePodLinks removes the host's ends of Pods that are still connected.
func removePodLinks(cfg Config) error {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var all error
	for _, l := range links {
		if l.Type() != "veth" || !strings.HasPrefix(l.Attrs().Name, "m"+cfg.InstanceID+"-") {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
			all = errors.Join(all, fmt.Errorf("remove interface %s: %w", l.Attrs().Name, err))
		}
	}
	return all
}

// writeConf writes the CNI configuration, which containerd watches.
func (n *Network) writeConf(cfg Config) error {
	n.conf = plugin.Conf{
		NetConf:  types.NetConf{CNIVersion: "1.0.0", Name: cfg.bridge(), Type: "mend-cni", Capabilities: map[string]bool{"portMappings": true}},
		Instance: cfg.InstanceID,
		Bridge:   n.Bridge,
		Table:    cfg.table(),
		Subnet:   n.PodCIDR,
		Subnet6:  n.PodCIDR6,
		MTU:      n.MTU,
		IPAMDir:  cfg.ipamDir(),
	}
	entry, err := toEntry(n.conf)
	if err != nil {
		return err
	}
	list, err := json.MarshalIndent(map[string]any{
		"cniVersion": n.conf.CNIVersion, "name": n.conf.Name, "plugins": []any{entry},
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.ConfDir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(n.ConfDir, "10-mend.conflist")
	if old, err := os.ReadFile(path); err == nil && string(old) == string(list) {
		return nil
	}
	tmp := filepath.Join(cfg.cniDir(), ".conflist") // not in the watched folder
	if err := os.WriteFile(tmp, list, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// toEntry renders the plugin's part of a list, in which the list's own fields and the
// runtime's have no place.
func toEntry(conf plugin.Conf) (map[string]any, error) {
	b, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	var entry map[string]any
	if err := json.Unmarshal(b, &entry); err != nil {
		return nil, err
	}
	for _, key := range []string{"cniVersion", "name", "ipam", "dns", "runtimeConfig"} {
		delete(entry, key)
	}
	return entry, nil
}

package proxy

import (
	"log/slog"
	"net/netip"

	"k8s.io/client-go/tools/record"

	"mend/internal/network/catalog"
)

// Config says whose Services to carry, and for whom.
type Config struct {
	// InstanceID is in the table's name.
	InstanceID string
	// NodeName tells which endpoints are on this node.
	NodeName string
	// Zone is the node's topology.kubernetes.io/zone.
	Zone string
	// Families are the families with a table; none: IPv4 alone.
	Families []Family
	// PodRanges hold the addresses of this node's Pods.
	PodRanges []netip.Prefix
	// ServiceRanges hold the ClusterIPs.
	ServiceRanges []netip.Prefix
	// NodeAddrs are the node's addresses as the API knows them.
	NodeAddrs []netip.Addr
	// Bridge is the interface of this node's Pods. ServiceRanges are routed there, so
	// that the node itself reaches ClusterIPs even without a default route. Empty: no
	// route is made.
	Bridge string
	// Mark is the bit of the packet mark that stands for "masquerade"; 0 means 0x4000,
	// which is kube-proxy's.
	Mark uint32

	Catalog *catalog.Catalog
	// Programmed is told, in order, up to which EndpointSlice version the kernel has
	// everything. It must not block.
	Programmed func(version uint64)
	// Events take what goes wrong with one Service; may be nil.
	Events record.EventRecorder
	Log    *slog.Logger
}

func (c Config) table() string { return "mend-" + c.InstanceID + "-services" }

func (c Config) families() []Family {
	if len(c.Families) == 0 {
		return []Family{IPv4}
	}
	return c.Families
}

func (c Config) mark() uint32 {
	if c.Mark == 0 {
		return 0x4000
	}
	return c.Mark
}

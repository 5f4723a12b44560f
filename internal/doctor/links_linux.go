package doctor

import (
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// probeLinks makes one of each thing that the Pod network needs.
func probeLinks() map[string]error {
	features := map[string]error{
		"bridge": asked("bridge", netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe"}})),
		"veth":   asked("veth", netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"})),
	}
	conn, err := nftables.New()
	if err != nil {
		features["nf_tables"] = errNotAsked
		return features
	}
	conn.AddTable(&nftables.Table{Name: "probe", Family: nftables.TableFamilyINet})
	features["nf_tables"] = asked("nf_tables", conn.Flush())
	return features
}

package proxy

// Names of the sets and maps. Each exists in the table of each family.
const (
	setClusterIPs        = "cluster-ips"
	setServices          = "services"
	setNodePorts         = "node-ports"
	setEndpoints         = "endpoints"
	setNodePortEndpoints = "node-port-endpoints"
	setReject            = "reject"
	setDrop              = "drop"
	setRejectNodePorts   = "reject-node-ports"
	setDropNodePorts     = "drop-node-ports"
	setFirewalled        = "firewalled"
	setAllowed           = "allowed"
	setHairpin           = "hairpin"
	setEnding            = "ending"
	setSticky            = "sticky"
	setStickyNodePorts   = "sticky-node-ports"
	setAffinity          = "affinity"
	setAffinityNodePorts = "affinity-node-ports"
	setClasses           = "classes"
)

// field is one part of a key or value, and where a packet has it.
type field uint8

const (
	source      field = iota // the packet's source address
	destination              // the packet's destination address
	protocol                 // its layer 4 protocol
	port                     // its destination port
	sourcePort               // its source port
	index                    // which of the endpoints
	target                   // an endpoint's address
	targetPort               // an endpoint's port
	class                    // see Class
)

// schema describes one set or map.
type schema struct {
	name  string
	key   []field
	value []field // none: a set
	// ranged: the last part of the key is a range of addresses.
	ranged bool
	// remembers: packets write it, elements time out.
	remembers bool
}

// schemas lists the sets and maps that Services put elements into, and behind them
// those that packets write.
var schemas = []schema{
	{name: setClusterIPs, key: []field{destination}},
	{name: setServices, key: []field{destination, protocol, port}, value: []field{class}},
	{name: setNodePorts, key: []field{protocol, port}, value: []field{class}},
	{name: setEndpoints, key: []field{destination, protocol, port, index}, value: []field{target, targetPort}},
	{name: setNodePortEndpoints, key: []field{protocol, port, index}, value: []field{target, targetPort}},
	{name: setReject, key: []field{destination, protocol, port}},
	{name: setDrop, key: []field{destination, protocol, port}},
	{name: setRejectNodePorts, key: []field{protocol, port}},
	{name: setDropNodePorts, key: []field{protocol, port}},
	{name: setFirewalled, key: []field{destination, protocol, port}},
	{name: setAllowed, key: []field{destination, protocol, port, source}, ranged: true},
	{name: setHairpin, key: []field{source, destination}},
	{name: setEnding, key: []field{source, sourcePort}},
	{name: setSticky, key: []field{destination, protocol, port, target, targetPort}},
	{name: setStickyNodePorts, key: []field{protocol, port, target, targetPort}},
	{name: setAffinity, key: []field{source, destination, protocol, port}, value: []field{target, targetPort}, remembers: true},
	{name: setAffinityNodePorts, key: []field{source, protocol, port}, value: []field{target, targetPort}, remembers: true},
}

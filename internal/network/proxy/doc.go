// Package proxy makes a node's kernel carry Services: ClusterIPs, node ports, external
// and load balancer addresses lead to the endpoints, without a process in the way of a
// packet.
//
// # Promise
//
// What the API says is in the kernel a few milliseconds after the catalog has it, in
// one transaction, so no packet ever sees half of a change. The cost of a change does
// not grow with the number of Services, and neither does a look-up: Services are
// elements of hash maps, not rules. Once a change is committed, no new connection goes
// to an endpoint that left; [Config.Programmed] tells so, with the version. Connections
// in flight stay as they are. Nothing of it needs mend to run: the table stays when mend
// is restarted or killed, and the next mend reads it back and commits the difference.
//
// # Shape
//
// [render] turns one Service into a value: elements of the table's sets and maps. A
// ledger remembers what the kernel was last given and compares one Service at a time;
// [kernel] sends the difference. The fixed chains, and the few chains that choose among
// N endpoints, are values as well (see [Table]), which tests print and walk packets
// through.
//
// # The table
//
//	table ip|ip6 mend-<id>-services
//	  filter-prerouting-early, -output-early   loadBalancerSourceRanges
//	  nat-prerouting, nat-output → services    address . protocol . port → class → chain
//	  <class chain>                            mark for masquerade, choose one of N, dnat
//	  filter-prerouting-late, -output-late     reject or drop what has no endpoint
//	  nat-postrouting                          masquerade what was marked, and hairpins
//
// A class says how the endpoints are chosen: by which policy, among how many, with or
// without session affinity. There is a chain for each class in use, a few dozen at most,
// however many Services there are. Classes are found through a data map and a small
// verdict map: were the Services themselves in a verdict map, each change would make the
// kernel validate all of them again.
//
// # Session affinity
//
// One map, written by the packets themselves, remembers where a client went, per
// address and port it used. A client goes there again while the endpoint is one of
// the Service's and the time has not run out. Each new connection starts the time anew.
//
// Where this differs from kube-proxy's nftables mode: node ports answer on every address
// of the node, 127.0.0.1 too (as its iptables mode does); affinity is remembered per
// address that the client used.
package proxy

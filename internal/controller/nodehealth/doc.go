// Package nodehealth says which nodes can be relied on: it marks those whose
// agent has gone silent, keeps the taints that follow from a node's conditions,
// and brakes when so many are silent that the fault is more likely elsewhere.
//
// # States of a node
//
//	Ready      what it means                          taints kept
//	True       its agent says so                      none of ours
//	False      its agent says so                      not-ready:NoSchedule, and :NoExecute as the brake allows
//	Unknown    silent for the grace period, set here  unreachable:NoSchedule, and :NoExecute as the brake allows
//
// Memory, disk and PID pressure, an unavailable network and a cordon each keep a
// NoSchedule taint too. The NoExecute taint is what evicts: the tainteviction
// loop acts on it, after each Pod's tolerationSeconds.
//
// A node becomes Unknown only here, and leaves Unknown only by its agent's word.
// While a node is silent its Pods' Ready condition is False, so that nothing is
// sent to them.
//
// # Clocks
//
// A node is silent when its Lease and its Ready heartbeat have not changed for
// the grace period as measured by our own monotonic clock, from when we last saw
// a change. Timestamps that nodes write are only compared for being different.
// Time during which this process itself did not run (stopped, starved) counts
// for no node. Before a node is called silent its Lease is read past the cache.
//
// # The brake, as upstream's
//
// Nodes are counted by zone (topology.kubernetes.io/region and zone; nodes
// without are one zone).
//
//	all zones have no Ready node     no NoExecute taint on any node
//	3 or more, and 55 %, not Ready   at most one node in 100 s; none in a zone of up to 50
//	otherwise                        at most one node in 10 s
//
// A NoExecute taint that is there stays when the brake tightens, except in the
// first case: then the fault is ours or the network's, and nobody is evicted.
//
// # Reads, writes, memory
//
// Reads nodes, Leases in kube-node-lease and Pods. Writes node conditions (only
// to Unknown), spec.taints (only the keys above), and Ready=False on Pods of
// silent nodes. When each node was last heard, and when it is whose turn to be
// evicted, is in memory: a restart gives every node a fresh grace period.
package nodehealth

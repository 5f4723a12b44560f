// Package scheduler gives every Pod a node, or says why none will do.
//
// # Promises
//
//   - No node is over-committed: a Pod is bound only where its requests, host
//     ports and a place among allocatable Pods are free, counting every Pod that
//     the cache shows there and every binding of the scheduler's own that the
//     cache does not show yet.
//   - No Pod is bound where it may not run: nodeSelector, required affinity,
//     taints and cordons hold.
//   - A Pod that fits nowhere says so, with a reason from every node, in
//     upstream's words: condition PodScheduled=False and event FailedScheduling.
//   - It is tried again when something made room: a node came or changed, a Pod
//     ended. No timer retries; every five minutes the reason is merely repeated,
//     since events expire.
//   - Higher priority first, then older Pods first.
//   - The same cluster and Pod give the same node, whatever the order of events.
//
// # One Pod's way
//
//	in queue ── gates ────────────► gated    (PodScheduled=False, SchedulingGated)
//	   │                              │ spec changes
//	   ├─ fits nowhere ───────────► waiting  (PodScheduled=False, Unschedulable)
//	   │                              │ room on a node, node changed, spec changed
//	   └─ fits ──► assumed ──────────► bound (the API server sets PodScheduled=True)
//	                 │ refused by the API server
//	                 └──────────────► in queue, with back-off
//
// Assumed means: counted on its node, binding sent. When no answer comes, the
// Pod stays assumed and the same binding is sent again, since the lost answer
// may have been yes.
//
// # Reads, writes, memory
//
// It reads Pods and nodes and writes pods/binding and the condition
// PodScheduled=False; the API server writes PodScheduled=True with the binding.
// Only Pods whose spec.schedulerName is default-scheduler are its own; all Pods
// that name a node are counted.
//
// What it keeps in memory (the sums per node, waiting Pods, assumptions) is
// rebuilt from the first list after a restart, before the first plan is made.
//
// # Rules
//
// They are upstream's default profile as far as it applies here:
// https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins.
// There is no preemption, and inter-Pod affinity, topologySpreadConstraints and
// volumes are not looked at.
package scheduler

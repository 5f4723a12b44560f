// Package sim is a container runtime that lives in memory. It stands behind the
// same seam as a real one: [Runtime] implements RuntimeService and
// ImageManagerService of k8s.io/cri-api/pkg/apis, so the node agent cannot tell
// which of the two it drives.
//
// What it promises: sandboxes and containers move through the states of the CRI
// and events are sent in order; log files are written in CRI format at the path
// that the agent names; process ids and addresses are unique, and the ids lie
// above what any kernel hands out, so that a stray kill hits nothing. What a
// container does (how long it takes to start, when it becomes ready, when and
// how it exits, what its commands print) is data: see [Behaviour] and
// behaviour.yaml.
//
// What it does not promise: isolation, resource limits, or anything that needs a
// process. Nothing survives the end of the process that holds it; to the agent
// that looks like a machine that was rebooted.
//
// It is cheap: a container at rest is a small struct, with no goroutine, no open
// file and no timer of its own. Timed things share one heap, whose goroutine
// exists only while something waits in it.
//
// Containers cannot be reached over a network. [Runtime.Dial] is the way in: the
// probes and the API server's proxy take it as their dialer.
package sim

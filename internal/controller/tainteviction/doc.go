// Package tainteviction ends the Pods that do not tolerate a NoExecute taint of
// their node: at once, or when the time they tolerate it for is over.
//
// # States of a Pod
//
//	at rest    its node has no NoExecute taint, or it tolerates all of them for ever
//	counting   it tolerates all of them, at least one for a time: the shortest counts
//	evicted    condition DisruptionTarget written, deletion sent
//
//	at rest ──taint──► counting ──time over──► evicted
//	   ▲                  │  │                    ▲
//	   └──taint goes──────┘  └─untolerated taint──┘
//
// The time counts from when this process first saw the Pod under a taint, by our
// own monotonic clock, never from a taint's timeAdded, which another machine may
// have written; so a restart begins it anew. More taints or shorter tolerations
// only ever shorten it.
//
// # Reads, writes, memory
//
// Reads nodes and Pods. Writes the condition DisruptionTarget and deletes Pods;
// the Pod's agent, or podgc once the node is gone, completes the deletion. In
// memory: since when each Pod counts.
package tainteviction

// Package podgc deletes Pods that nobody else will: those of nodes that no
// longer exist, those that are deleted but were never bound to a node, those
// stuck on nodes that were declared out of service, and the oldest of too many
// that have ended.
//
// # State table
//
//	Pod                                                   what is done
//	----------------------------------------------------  -----------------------------------------------
//	bound to a node that is missing for less than 40 s    wait (the node may be about to register)
//	bound to a node that a live read shows to be gone     phase Failed, condition DisruptionTarget, force delete
//	being deleted, on a node that is not ready and has    phase Failed, force delete
//	  the taint node.kubernetes.io/out-of-service
//	being deleted, bound to no node                       phase Failed, force delete
//	ended, and more than 12500 have                       force delete the oldest, evicted ones first
//	ended and force deleted already                       nothing: a finalizer holds it
//
// # Reads and writes
//
// Reads pods and nodes. Writes the phase and the condition DisruptionTarget of
// the Pods above, and deletes them, always with their UID as precondition.
//
// # Crash
//
// Since when a node is missing is remembered only here; after a restart the 40 s
// begin anew. A Pod marked Failed and not yet deleted is found again.
//
// Rules, texts and numbers are upstream's (pkg/controller/podgc), which looks
// every 20 s; here each Pod or node that concerns this loop wakes it.
package podgc

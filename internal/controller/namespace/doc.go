// Package namespace empties namespaces that are being deleted, says what keeps
// them, and lets them go. A second, small loop keeps the namespaces that every
// cluster has.
//
// # Promises
//
//   - Everything in a terminating namespace is deleted, Pods first and with their
//     grace; the rest waits until no Pod needs it any more.
//   - The finalizer "kubernetes" goes only after a pass that listed every kind
//     and found nothing, and not within settleTime of the deletion: a create that
//     was admitted just before must be seen.
//   - While something remains, the conditions name it, as upstream's do.
//
// # State table
//
//	namespace                             content                        what is done
//	------------------------------------  -----------------------------  -------------------------------------
//	not being deleted                     -                              nothing
//	deleted, phase not Terminating        any                            phase Terminating, then as below
//	deleted, spec.finalizers empty        -                              nothing: it is not ours any more
//	deleted                               Pods not deleted yet           delete them; nothing else yet
//	deleted                               Pods on their way out          conditions; wait for their events
//	deleted                               others not deleted yet         delete them
//	deleted                               only what finalizers hold      conditions; look again, ever more slowly
//	deleted                               a kind that does not answer    conditions; look again
//	deleted                               nothing, of every kind         remove "kubernetes" from spec.finalizers
//
// # Reads and writes
//
// Reads namespaces, discovery, and lists whatever it serves in the namespace.
// Writes the namespace's phase, its five deletion conditions and
// spec.finalizers[kubernetes]; deletes content. Pods' ends wake it.
//
// # Crash
//
// All that matters is in the API. What is lost is the count of attempts and the
// errors of the last one; the next pass finds them again.
//
// How old a deletion is does not follow when the wall clock is set; one that lies
// in the future counts from when this process first saw it.
//
// The rules and texts are upstream's (pkg/controller/namespace/deletion). On
// purpose: remaining Pods are named too while they are waited for, contents are
// deleted at once instead of after 5 s, and Pods' ends are events, not guesses.
package namespace

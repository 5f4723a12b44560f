// Package garbage collects objects whose owners are gone, and finishes the two
// kinds of deletion that concern dependents: foreground and orphan.
//
// # Promises
//
//   - An object is deleted only when a live read has shown, for every owner it
//     names, that no object with that UID is there (or that the owner is itself
//     being deleted in the foreground), and only at the resourceVersion and UID
//     that this was judged for. A cache alone never condemns anything.
//   - An owner that exists keeps its dependents. Of a dependent with one live
//     owner only the dangling references are removed.
//   - A reference to a kind that is not served proves nothing: the object stays.
//   - Foreground: the owner stays until no dependent blocks it any more.
//   - Orphan: the owner stays until no dependent names it any more.
//
// # State table
//
// The subject is an object in the graph; "waiting" owners are those that are
// being deleted in the foreground themselves.
//
//	subject                               owners                       what is done
//	------------------------------------  ---------------------------  ------------------------------------
//	being deleted, finalizer orphan       any                          drop its reference from each dependent, then release orphan
//	being deleted, foregroundDeletion     any, blocking dependents     wait; unblock those that wait for the subject in a circle
//	being deleted, foregroundDeletion     any, nothing blocks          release foregroundDeletion
//	being deleted otherwise               any                          nothing
//	not being deleted                     none named                   nothing
//	not being deleted                     one lives, some do not       drop the references to those that do not
//	not being deleted                     one's kind is not served     as if it lived; look again in 30 s
//	not being deleted                     one is out of reach          as if it lived (a namespaced owner of a cluster-scoped object)
//	not being deleted                     one waits, none lives        delete; in the foreground when it has dependents
//	not being deleted                     none exists                  delete, by the policy its finalizers ask for
//	not in the graph, but named as owner  -                            verify; examine the dependents of what is absent
//
// # Reads and writes
//
// It reads the metadata of every kind that discovery lists with delete, list and
// watch (events excepted). It writes owner references, the two finalizers, and
// deletes. Users and controllers write owner references too; the API server puts
// the finalizers on.
//
// # Crash
//
// Nothing is kept but the graph, which the first lists rebuild; once they are in,
// every object is looked at once. References are dropped before the finalizer
// that waits for this, so a crash between two actions leaves work, not harm.
//
// The rules are upstream's (k8s.io/kubernetes/pkg/controller/garbagecollector);
// the differences are on purpose: owners that the graph knows as living are not
// read again, circles are found exactly, finalizers are not released before
// every kind has been listed, and a 404 for a path is not taken for the absence
// of an object.
package garbage

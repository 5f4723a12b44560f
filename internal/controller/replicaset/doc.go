// Package replicaset keeps the number of Pods that a ReplicaSet asks for.
//
// # Promise
//
// The number of active Pods (not being deleted, not Succeeded or Failed) moves
// to spec.replicas and never past it: a plan creates at most what is missing and
// deletes at most what is too many, whatever part of it is carried out. Pods that
// match the selector and have no controller are adopted; Pods that no longer
// match are released. The status tells what was seen, and a new
// observedGeneration appears together with the counts and conditions that belong
// to it.
//
// # State table
//
// Each row has one owner; the first row that fits is what [plan] does.
//
//	| State       | Fits when                                         | Plan                          | Left by                         |
//	|-------------|---------------------------------------------------|-------------------------------|---------------------------------|
//	| failed      | the last create or delete was refused             | condition ReplicaFailure      | back-off, then the rows below   |
//	| unclaimed   | an orphan matches, or an owned Pod does not       | Adopt, Release, nothing else  | the Pod's event                 |
//	| terminating | deletionTimestamp set                             | status                        | garbage collection              |
//	| short       | active < spec.replicas                            | CreatePods (≤ 500), status    | the Pods' events                |
//	| over        | active > spec.replicas                            | DeletePods (≤ 500), status    | the Pods' events                |
//	| settling    | a Pod is ready for less than minReadySeconds, or  | status, look again then       | time, or the proxies            |
//	|             | requests do not reach it yet                      |                               |                                 |
//	| kept        | otherwise                                         | status if it differs          | the next event                  |
//
// # Reads, writes, neighbours
//
// Reads ReplicaSets and Pods, and ServiceAccounts only to try again when the one
// a refused Pod lacked appears. Writes Pods (create, delete, the owner reference)
// and replicasets/status. The Deployment loop writes a ReplicaSet's spec and
// annotations and reads the status; the scheduler and the node agent write the
// Pods' binding and status.
//
// # After a crash
//
// Everything remembered is in the API. Lost are the back-off, the memory of own
// writes that the caches have not seen (the caches start from a fresh list) and
// the time of the last status write, which only spares writes.
//
// Where this differs from Kubernetes: deletes carry the Pod's resourceVersion, so
// a Pod that became ready since it was chosen is chosen anew; status writes that
// only count up are held back to one in 50 ms, and looks at Pods that only came on
// to one in 25 ms (see wake.go); a ready Pod is available only once every node's
// proxy leads to it, or two seconds later ([Routing]); of ready Pods those go first that
// are not available yet (see rank.go); and the back-off ends at 30 s.
package replicaset

// Package deployment rolls the Pods of a Deployment from one template to the next
// and keeps their number, by choosing the sizes of its ReplicaSets.
//
// # Promises
//
//   - Never more Pods than the ceiling, replicas + maxSurge, and never fewer
//     available ones than the floor, replicas − maxUnavailable, on account of a
//     rollout: not after any part of a plan, whatever becomes of the rest. (Pods
//     that are being deleted are not counted; status.terminatingReplicas tells them.)
//   - Only a change of the template starts a rollout. A change of the size in the
//     middle of one is spread over the ReplicaSets and moves nothing on.
//   - Pausing takes no Pod away.
//   - A new status.observedGeneration appears in one write with the counts and
//     conditions that belong to it.
//   - Each revision has its own change cause, or none.
//
// # State table
//
// Each row has one owner, this loop; the first row that fits is what [plan] does.
// "New" is the ReplicaSet with the present template, "old" are the others.
//
//	| State       | Fits when                                          | Plan                                                     | Left by                    |
//	|-------------|----------------------------------------------------|----------------------------------------------------------|----------------------------|
//	| unclaimed   | an orphan matches, or an owned one does not        | Adopt, Release, nothing else                             | the ReplicaSet's event     |
//	| terminating | deletionTimestamp set                              | status                                                   | garbage collection         |
//	| collided    | another ReplicaSet has the name of the one to make | collisionCount + 1                                       | the status write           |
//	| refused     | the API server refused the new ReplicaSet          | Progressing=False, ReplicaSetCreateError                 | back-off                   |
//	| paused      | spec.paused                                        | sizes follow a change of replicas, history, status       | spec.paused off            |
//	| scaled      | replicas changed since the sizes were chosen       | sizes follow in proportion, status                       | the ReplicaSets' events    |
//	| stopping    | Recreate, and old Pods want to be or still are     | old to 0, status                                         | the Pods' end              |
//	| starting    | Recreate, no old Pod left                          | new made, to replicas, status                            | the ReplicaSet's status    |
//	| waiting     | RollingUpdate, a size is not acknowledged yet        | new made empty if there is none, status                  | the ReplicaSets' statuses  |
//	| rolling     | RollingUpdate, not all Pods new and available      | new made or grown to the ceiling, old cut to the floor   | the ReplicaSets' statuses  |
//	| overdue     | rolling, no progress for progressDeadlineSeconds   | as rolling; Progressing=False, ProgressDeadlineExceeded  | progress, another template |
//	| complete    | all Pods new and available, none old               | old beyond revisionHistoryLimit deleted, status          | another template or size   |
//
// # Reads, writes, neighbours
//
// Reads Deployments, ReplicaSets and, under Recreate, Pods. Writes the spec and
// annotations of ReplicaSets that it owns (and creates and deletes those), and
// deployments/status with the revision annotation. The ReplicaSet loop makes and
// removes the Pods and writes the ReplicaSets' status, which is all that this loop
// knows of them. A rollback is a change of the template by the client.
//
// # After a crash
//
// Progress is read from the sizes, statuses and annotations of the ReplicaSets and
// from the Deployment's own status. Nothing else is remembered.
//
// Where this differs from Kubernetes: see docs/differences.md. Growing and
// shrinking happen in one plan; Pods that a ReplicaSet was told to remove but still
// reports take up room below the ceiling; when a change of size shrinks, rounding
// never breaks the floor, and when it grows nothing shrinks; sizes move on only
// when the ReplicaSets have acknowledged the ones before; a rollout to an
// existing ReplicaSet begins with FoundNewReplicaSet instead of the verdict on the
// one before; a change cause is not inherited; revisions count on, not from 1, when
// no ReplicaSet is left.
package deployment

// Package agent is the node agent: it makes the Pods of one node real, as the
// kubelet does upstream.
//
// # How it works
//
// One worker per Pod: observe → plan → apply, never twice at once for one Pod.
// [plan] is pure; it sees the Pod as the API has it, what the runtime holds
// ([podruntime.State]) and what is under way, and gives the next actions. What
// takes long (a pull, a start, a stop with its grace period) runs beside the
// worker and is seen as a flight; when it lands the worker looks again. Nothing
// waits for anything else in a sleep or a poll.
//
// What wakes a worker: an event of its Pod in the API; an event of the runtime
// about it (a hint: it means "look"); the end of a container's process, where
// that is told sooner ([Config.Exits]); a probe's result; an action that ended; a
// known time (the end of a back-off or deadline). Behind all that, once a minute,
// a census of the runtime wakes the workers whose Pods differ from what they
// remember, and finds sandboxes of Pods that the API does not have.
//
// # States
//
//	it is so when                         the agent does                    leaves when
//	volumes are not in place              sets them up                      they are; Pod ends
//	no sandbox that will do               ends what is left in old ones,    the newest is ready
//	                                      runs a new one
//	an init container has not passed      starts it, or waits for it        it ended with 0, or a
//	                                                                        sidecar has started
//	a container does not run and should   ensures the image, then creates   it runs; back-off and
//	                                      and starts it                     failures delay that
//	a container runs and is broken        ends it (probe, definition)       it ended
//	all regular ones ended for good       ends sidecars                     nothing runs
//	deleted, and requests may reach it    lets it serve on                  every proxy leads elsewhere
//	                                                                        and requests in flight are
//	                                                                        answered, or 3/4 of grace
//	deleted, refused, too late, finished  ends containers (sidecars last),  nothing runs, no sandbox
//	                                      then sandboxes                    is ready
//	that, and the status is written       takes volumes and cgroup away     they are gone
//	that, and the Pod is deleted          removes sandboxes, then the API   it is gone
//	                                      object (grace 0, UID)
//	gone from the API                     removes logs, forgets             –
//
// # Promises
//
// Never two live instances of one container. A container is started only in the
// active sandbox, after volumes, and one after another. A final phase is written
// only when nothing runs. What the final status is made of is removed only after
// the API has it. Whatever was done, in whatever order, a crash behind it leaves
// all this true, because everything needed is in the runtime's labels and in the
// API: restart counts (attempts), ends of containers, grace periods. Back-offs,
// probe results and which failures were told are lost in a crash; containers live
// on and are adopted.
//
// It reads pods (of its node), services, configmaps, secrets; it writes
// pods/status and deletes pods of its node, and writes events; package node
// writes the Node and its Lease. On the host it writes below its data directory,
// the log directory and its cgroup parent only.
package agent

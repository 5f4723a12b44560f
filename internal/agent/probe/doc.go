// Package probe runs the startup, liveness and readiness probes of a node's
// containers, as kubelet does: same conditions, same messages.
//
// The agent tells the [Manager] which containers run ([Manager.Ensure]) and hears
// of every settled change at once; nothing is polled. A container's first attempt
// is made as soon as its initial delay has passed since its start (kubelet waits
// for the next tick of the Pod's age), and liveness and readiness follow in the
// moment in which startup succeeds.
//
// States of one probe of one container:
//
//	state    leaves when                                       to
//	gated    startup has succeeded (or there is no such probe) waiting
//	waiting  the time of the next attempt comes                probing
//	probing  the attempt ends, thresholds are not reached      waiting
//	probing  readiness settled, or liveness succeeded          waiting
//	probing  liveness failed, or startup settled               held
//	held     the container is replaced by another              (a new probe)
//
// A server is rarely up at the moment its container starts, so the first attempt
// mostly fails, and the next would come a whole period later. Until a readiness or
// startup probe has first succeeded, it is therefore also looked at in between,
// after 50 ms and then at doubling distances. Such a look counts only if it
// succeeds: it makes no event and brings no threshold nearer. Exec probes, which
// cost a process each, are left to their period. kubelet does not do this.
//
// A deleted Pod ends startup (as succeeded, so that nothing is killed for it) and
// liveness; readiness goes on, so that traffic stops when it fails.
//
// It is cheap: a probe at rest is a struct in one heap of times, without a
// goroutine; an exec probe passes its command on as it is and prepares no
// environment.
package probe

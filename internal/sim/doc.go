// Package sim runs the real loops in a world that repeats from a seed.
//
// The plan, apply and observe code of Deployment, ReplicaSet, scheduler, garbage
// collection, Pod collection, node health and taint eviction, of the loops that fill
// and end namespaces, of those that keep EndpointSlices, Endpoints and the slices that
// mirror them, of load balancers and of Services' ranges and addresses is the shipped
// one; it is built as app builds it, but driven by hand (see
// [mend/internal/loop.Drive]). Of the loops that app lists one is missing: apiservice,
// whose three objects have fixed contents that no other loop or user here has to do with.
// What surrounds it is made here: an API in memory with the rules that the loops
// build on (resourceVersions, UIDs, preconditions, generations, finalizers, graceful
// deletion, status subresources), watches that lag, repeat and start over, clocks,
// users, and an agent that stands for every node.
//
// # What goes wrong on purpose
//
// Stale caches, each kind by itself; events late and twice, or missed between two
// lists; conflicts; requests that fail before or after they took effect; refused
// creates; the process killed between any two requests and started anew; wall
// clock jumps in both directions, or else, in a third of the seeds, agents that fall
// silent and are heard again (silence.go); in half of the seeds, namespaces that
// come and go, and creates that take effect after their namespace began to end
// (namespaces.go), and in half of them Services (services.go), in half of which each
// load balancers (balancers.go), Endpoints written by hand (mirrors.go) and addresses
// (addresses.go); what a loop has just made, deleted while its watch starts over; users,
// the agent and other loops acting between any two requests of a sync.
//
// # What is checked
//
// After every write: see ledger.go, and the judges of each part. Once faults stop:
// everything converges within a bound (settle.go), and then, through timers, repeated
// events and a restart, no loop writes anything any more.
//
// # Repeatability
//
// Each step draws from a generator seeded by the run's seed and the step's number
// alone, so a step can be left out without changing what the others draw. That is
// how a failure is cut down to few steps (minimise.go). Nothing else may decide:
// no map order, goroutine or real time reaches a choice. There is one exception:
// upstream's library for EndpointSlices walks maps, so that of two slices that it
// changes in one sync either may be first. Few seeds come to that.
package sim

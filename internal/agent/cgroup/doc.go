// Package cgroup keeps the cgroups of Pods: the directory that a Pod's containers
// live in, with the limits of the Pod as a whole, and the QoS tiers above it.
//
// The limits of each container are the runtime's business; without the Pod's own
// the kernel would weigh every Pod alike whatever it requests. Works on cgroup v1
// and v2. It promises to remove only what is below its parent, and only empty
// directories. Nothing is kept in memory.
package cgroup

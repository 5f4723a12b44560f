// Package endpointslice keeps the EndpointSlices of Services that have a selector.
//
// # Promise
//
// Each Pod that a Service selects is in one of the Service's slices per IP family of the
// Service, with upstream's conditions: ready, when its Ready condition is True and it is
// not being deleted (or always, with publishNotReadyAddresses); serving, when its Ready
// condition is True; terminating, when it is being deleted. A Pod that is done, or has
// no address, is in none. Slices are split, packed and labelled as upstream does, at most
// 100 endpoints each, because upstream's own library does it.
//
// That library decides and writes in one go. It is the one allowed exception from
// observe, plan and apply.
//
//	| State    | Fits when                                              | What happens                | Left by             |
//	|----------|--------------------------------------------------------|-----------------------------|---------------------|
//	| none     | no selector, or type ExternalName                      | nothing: others write them  | the Service's event |
//	| behind   | the cache lacks a slice that this loop wrote           | it waits                    | that slice's event  |
//	| differs  | slices do not show what Pods are                       | create, update, delete      | the slices' events  |
//	| shown    | otherwise                                              | nothing                     | a Pod's event       |
//
// # Reads, writes, neighbours
//
// Reads Services, Pods, Nodes (their zone) and EndpointSlices. Writes EndpointSlices with
// the label endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io. The
// slices of a Service without selector are written by the mirror loop, by apiservice, or by
// clients. Proxies read all of them; garbage collection removes those of a Service that
// is gone.
//
// # After a crash
//
// Nothing is remembered but in the API. Lost are the memory of own writes that the cache
// has not seen (it starts from a fresh list) and the counts for topology hints.
//
// Where this differs from Kubernetes: an error is tried again after 5 ms and not after
// 1 s, without an end to the attempts; a sync that found the cache behind goes on with the
// event that it lacked, not after a pause. Whether the cache is behind goes by the
// versions that were written: a slice that somebody deleted or gave to another Service
// before the cache showed it is not waited for. The end of a slice that another process
// wrote is noticed too.
package endpointslice

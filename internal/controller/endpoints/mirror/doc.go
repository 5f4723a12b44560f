// Package mirror makes EndpointSlices of Endpoints that a client wrote by hand, so that
// whoever reads slices alone sees them.
//
// # Promise
//
// For each Endpoints object of a Service without selector there is one slice for each
// subset and IP family, with its labels and annotations and at most 1,000 addresses, and
// no other slice of this loop's. Objects with the label
// endpointslice.kubernetes.io/skip-mirror, or that leaders are elected with, have none.
//
//	| State      | Fits when                                                     | Plan                   | Left by             |
//	|------------|---------------------------------------------------------------|------------------------|---------------------|
//	| unmirrored | no Endpoints, no Service, a selector, or not to be mirrored   | Delete all             | an event            |
//	| differs    | slices do not show what subsets say                           | Create, Update, Delete | the slices' events  |
//	| shown      | otherwise                                                     | nothing                | an event            |
//
// Slices are created before those that they replace are deleted, and one that would be
// deleted is changed into one that would be created where it can be.
//
// # Reads, writes, neighbours
//
// Reads Endpoints, Services and EndpointSlices. Writes EndpointSlices with the label
// endpointslice.kubernetes.io/managed-by: endpointslicemirroring-controller.k8s.io. The
// slices of Services with a selector are package endpointslice's.
//
// # After a crash
//
// Everything is in the API.
package mirror

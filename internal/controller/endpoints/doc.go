// Package endpoints keeps the Endpoints object of each Service that has a selector, for
// clients that do not read EndpointSlices.
//
// # Promise
//
// The object has the Service's name, its labels and, packed into subsets as upstream does,
// the Pods that it selects: under addresses those that are ready (or all, with
// publishNotReadyAddresses), under notReadyAddresses the others; in the first of the
// Service's IP families only. Pods that end are in neither. Beyond 1,000 addresses it is
// cut, ready ones first, and says so in an annotation. Changes within [batch] cost one
// write.
//
//	| State    | Fits when                                                         | Plan               | Left by             |
//	|----------|-------------------------------------------------------------------|--------------------|---------------------|
//	| orphan   | there is no such Service                                          | Delete             | the object's event  |
//	| foreign  | no selector, or type ExternalName                                 | nothing            | the Service's event |
//	| missing  | there is no such object                                           | Create             | the object's event  |
//	| differs  | subsets, labels or the annotation of the cut are not as they should be | Update        | the object's event  |
//	| shown    | otherwise                                                         | nothing            | a Pod's event       |
//
// # Reads, writes, neighbours
//
// Reads Services, Pods and Endpoints. Writes the Endpoints of Services with a selector, and
// deletes those whose Service is gone. Clients write the others, apiservice
// default/kubernetes; the mirror loop makes slices of those. EndpointSlices of Services with
// a selector do not come from here: package endpointslice makes them, and sooner.
//
// # After a crash
//
// Everything is in the API. Endpoints left without a Service are found in the first list.
//
// Where this differs from Kubernetes: writes are batched; a change of the object by
// somebody else is undone at once, not at the next Pod's event.
package endpoints

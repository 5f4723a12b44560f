// Package loadbalancer gives Services of type LoadBalancer the nodes' own addresses: on a
// machine of one's own there is no other load balancer.
//
// # Promise
//
// A Service without a class gets, as its ingress, one address of each ready node for each
// of its IP families: the ExternalIP if the node has one, else the InternalIP. With
// externalTrafficPolicy Local these are the nodes that have a ready endpoint. A port of an
// address belongs to one Service: of several that want it, the oldest. Ports that the
// node itself needs are never given away.
//
//	| State    | Fits when                                                          | Plan         | Left by                   |
//	|----------|--------------------------------------------------------------------|--------------|---------------------------|
//	| foreign  | another type or class, or being deleted                            | nothing      | the Service's event       |
//	| refused  | a port is reserved, or an older Service's, or the address asked    | no addresses | that Service's or a       |
//	|          | for (spec.loadBalancerIP) is no node's                             | and a note   | node's event              |
//	| differs  | the ingress is not those addresses                                 | WriteStatus  | the Service's event       |
//	| served   | otherwise                                                          | nothing      | a Service's, node's or    |
//	|          |                                                                    |              | slice's event             |
//
// # Reads, writes, neighbours
//
// Reads Services, Nodes and EndpointSlices. Writes services/status of such Services. The
// proxy makes the addresses lead to endpoints, on every node; the API server empties the
// status of a Service that has changed its type.
//
// # After a crash
//
// Everything is in the API. A note may be given again.
package loadbalancer

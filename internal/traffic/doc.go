// Package traffic keeps requests from being dropped when Pods come and go.
//
// # Promise
//
// A Pod that is to end first leaves the endpoints of its Services; every node's proxy
// confirms that it sends no new connection there; requests in flight are answered; only
// then does [Gate.LeftEndpoints] let its containers be told to end. And a Pod that became
// ready is [Gate.IsRouted] once every node's proxy leads to it.
//
// The wait is bounded: by two seconds, and half the grace period, for endpoints and
// proxies, so that a dead node does not hold anybody up; by three quarters of the grace
// period for requests in flight. A node that let one wait run out is not waited for again
// until it confirms something.
//
// # Confirmations
//
// Each node has one Lease in kube-system (see [LeaseName]) with one annotation: the
// resourceVersion of EndpointSlices up to which its proxy has everything in the kernel.
// Versions of one resource grow, so one number answers for every Pod of every Service:
// the cost is one write for each batch of changes, not for each Pod, and none at rest.
// docs/decisions/0011 says why it is kept there.
//
// # A Pod's end
//
//	| State     | Fits when                                                        | Left by                             |
//	|-----------|------------------------------------------------------------------|-------------------------------------|
//	| free      | no Service selects it, or it never could be an endpoint          | at once                             |
//	| listed    | a Service that selects it does not show it as terminating yet    | the endpoints loop, or the limit    |
//	| leaving   | some node's confirmation is older than that                      | the last node's proxy, or the limit |
//	| answering | a request that was in flight when the last proxy confirmed is    | its answer, or three quarters of    |
//	|           | not answered                                                     | the grace period                    |
//	| left      | otherwise                                                        | the agent ends the containers       |
//
// The first three rows compare resourceVersions: the slice that shows the Pod as
// terminating has one, and every confirmation at or above it means that the slice, and
// all before it, are in that node's kernel. A Pod that took the old one's place became
// ready before the old one was deleted, so the same slice version shows it: no node ever
// has neither.
//
// Services with publishNotReadyAddresses keep a Pod to its end, by their users' wish; they
// are not waited for. All of this is lost in a crash and found again from the API.
package traffic

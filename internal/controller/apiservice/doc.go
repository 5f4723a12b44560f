// Package apiservice keeps the Service default/kubernetes, by which Pods reach
// the API server, with Endpoints and an EndpointSlice that carry the addresses
// and the port at which it really listens.
//
// # Promises
//
//   - The three objects exist whenever the namespace default does; deleted, they
//     are made anew.
//   - The Service's ports are those of the API server also after that moved to
//     another port; the rest of it, the cluster address above all, is left as it
//     is, since Pods have it in their environment.
//   - Endpoints and EndpointSlice say the same.
//
// # Reads, writes, memory
//
// Reads and writes exactly these three objects; nobody else does. Endpoints
// carry endpointslice.kubernetes.io/skip-mirror, so that nobody makes a second
// slice of them. It remembers nothing.
//
// Upstream: the kubernetesservice controller and the endpoint reconciler of
// kube-apiserver.
package apiservice

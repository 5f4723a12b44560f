// Package kubeletapi serves the HTTP API that kubelet has: logs, exec, attach,
// port-forward, the list of Pods, statistics and metrics of one node. The API server
// is its client, for `kubectl logs` and its like.
//
//	GET      /containerLogs/{namespace}/{pod}/{container}
//	GET,POST /exec/{namespace}/{pod}[/{uid}]/{container}
//	GET,POST /attach/{namespace}/{pod}[/{uid}]/{container}
//	GET,POST /portForward/{namespace}/{pod}[/{uid}]
//	POST     /run/{namespace}/{pod}[/{uid}]/{container}
//	GET      /pods, /runningpods/, /stats/summary, /healthz
//	GET      /metrics, /metrics/resource
//
// Who has no certificate of our authority is turned away in the TLS handshake;
// nothing is anonymous. Every request is authorised, with the attributes that kubelet
// uses (resource nodes, this node's name, a subresource by path).
//
// The container runtime serves streams itself; this package asks it for an address
// and hands the connection on. SPDY and the older WebSocket protocols go through as
// they are. The newer WebSocket protocols (v5 of exec and attach, tunnelled SPDY of
// port-forward) are translated to SPDY here, as kubelet does, for clients that reach
// us without the API server having done so.
package kubeletapi

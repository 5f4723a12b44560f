// Package traffic tests the way from a Pod's status to real packets in process: the
// real API server, the loops of endpoints, the proxy and the gate, with Pods that are
// network namespaces. The test says what the agent would say. Without root it is skipped.
package traffic

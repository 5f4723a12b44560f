// Package status turns what the runtime says of a Pod into the status that the
// API shows, as the kubelet would: phase, conditions, container states, restart
// counts, addresses.
//
// [Generate] is pure. Rules and texts are those of
// k8s.io/kubernetes/pkg/kubelet (kubelet_pods.go, status/generate.go). [Merge]
// and [Patch] bring a generated status together with what others wrote.
//
// What a status remembers beyond the runtime (restart counts and ends of
// containers that are gone, the start time) it takes from the previous status, so
// it survives a restart of the agent through the API.
package status

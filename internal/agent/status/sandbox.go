package status

import (
	v1 "k8s.io/api/core/v1"

	"mend/internal/agent/podruntime"
)

// SandboxNeeded says why the Pod needs a (new) sandbox; "" if the one it has will
// do.
func SandboxNeeded(pod *v1.Pod, state podruntime.State) string {
	if len(state.Sandboxes) == 0 {
		return "no pod sandbox exists"
	}
	ready := 0
	for _, s := range state.Sandboxes {
		if s.Ready {
			ready++
		}
	}
	newest := state.Sandboxes[0]
	switch {
	case ready > 1:
		return "multiple pod sandboxes are ready and need to be reconciled"
	case !newest.Ready:
		return "pod sandbox is not ready"
	case newest.HostNetwork != pod.Spec.HostNetwork:
		return "network namespace mode changed and sandbox needs to be recreated"
	case !pod.Spec.HostNetwork && len(newest.IPs) == 0:
		return "pod sandbox has no IP address"
	}
	return ""
}

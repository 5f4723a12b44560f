package agent

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"mend/internal/agent/podspec"
	"mend/internal/agent/status"
)

// safeSysctls are those that reach no further than the Pod's own namespaces, on
// every kernel that mend runs on. Others (kernel.msgmax, say) let one Pod take
// from the whole node, and upstream allows them only by configuration.
var safeSysctls = map[string]bool{
	"kernel.shm_rmid_forced":              true,
	"net.ipv4.ip_local_port_range":        true,
	"net.ipv4.ip_local_reserved_ports":    true,
	"net.ipv4.ip_unprivileged_port_start": true,
	"net.ipv4.ping_group_range":           true,
	"net.ipv4.tcp_fin_timeout":            true,
	"net.ipv4.tcp_keepalive_intvl":        true,
	"net.ipv4.tcp_keepalive_probes":       true,
	"net.ipv4.tcp_keepalive_time":         true,
	"net.ipv4.tcp_notsent_lowat":          true,
	"net.ipv4.tcp_rmem":                   true,
	"net.ipv4.tcp_slow_start_after_idle":  true,
	"net.ipv4.tcp_syncookies":             true,
	"net.ipv4.tcp_wmem":                   true,
}

// forbiddenSysctl says which of the Pod's sysctls it may not set; nil if none.
func forbiddenSysctl(pod *v1.Pod) *status.Verdict {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := podspec.Dotted(s.Name)
		why := ""
		switch {
		case !safeSysctls[name]:
			why = "not allowlisted"
		case pod.Spec.HostNetwork && strings.HasPrefix(name, "net."):
			why = "not allowed with host Net enabled"
		case pod.Spec.HostIPC && strings.HasPrefix(name, "kernel."):
			why = "not allowed with host IPC enabled"
		default:
			continue
		}
		return &status.Verdict{Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %q %s", name, why)}
	}
	return nil
}

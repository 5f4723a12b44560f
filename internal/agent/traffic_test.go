package agent

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestNetNSOf(t *testing.T) {
	for name, tt := range map[string]struct {
		info, path string
		ok         bool
	}{
		"a Pod with a namespace of its own": {`{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/n/1"}]}}}`, "/run/n/1", true},
		"one in the host's network":         {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}}}`, "", false},
		"a runtime that tells nothing":      {"", "", false},
		"a runtime that tells other things": {`{"runtimeSpec":"?"}`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			if path, ok := netNSOf(tt.info); path != tt.path || ok != tt.ok {
				t.Errorf("netNSOf = %q, %v, want %q, %v", path, ok, tt.path, tt.ok)
			}
		})
	}
}

func TestPlanLetsRequestsLeaveFirst(t *testing.T) {
	cases := []planCase{
		{"a Pod that requests may reach serves on", with(up(deleted(30)), func(o *Observed) { o.Gated = true }), want{
			Actions: []Action{{Kind: LeaveEndpoints, Why: "the Pod is deleted"}}, Recheck: after(22500 * time.Millisecond),
			Phase: v1.PodRunning, States: "running", Ready: true}},
		{"when none does it has what is left of its grace period", with(up(deleted(30)), func(o *Observed) {
			o.Gated, o.EndingSince, o.LeftAt = true, after(-20*time.Second), after(-8*time.Second)
		}), want{Actions: []Action{killing("web", "web0", 18, "Stopping container web")}, Phase: v1.PodRunning, States: "running", Ready: true}},
		{"a moment of waiting is not counted", with(up(deleted(30)), func(o *Observed) {
			o.Gated, o.EndingSince, o.LeftAt = true, after(-100*time.Millisecond), epoch
		}), want{Actions: []Action{killing("web", "web0", 30, "Stopping container web")}, Phase: v1.PodRunning, States: "running", Ready: true}},
		{"requests hold it for three quarters of its grace period at most", with(up(deleted(20)), func(o *Observed) {
			o.Gated, o.EndingSince = true, after(-15*time.Second)
			fly(o, after(-15*time.Second), Action{Kind: LeaveEndpoints})
		}), want{Actions: []Action{{Kind: Abandon, ID: "traffic", Why: "the Pod ends"}, killing("web", "web0", 5, "Stopping container web")},
			Phase: v1.PodRunning, States: "running", Ready: true}},
		{"one of which nothing runs is not held", with(ended(), func(o *Observed) { o.Gated = true; settle(o) }), want{
			Actions: []Action{{Kind: TearDown, Why: "the Pod has ended"}, {Kind: RemoveSandbox, ID: "s0", Why: "the Pod is deleted"}}, Phase: v1.PodSucceeded, States: "ended 0 Completed"}},
		{"one that ends by itself is not held", with(up(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }), func(o *Observed) { o.Gated = true }), want{
			Actions: []Action{killing("web", "web0", 30, "Stopping container web")}, Phase: v1.PodFailed, States: "running"}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

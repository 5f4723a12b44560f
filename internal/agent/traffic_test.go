package agent

import "testing"

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

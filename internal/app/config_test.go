package app

import (
	"strings"
	"testing"

	"mend/internal/network"
)

func TestValidateIPFamilies(t *testing.T) {
	for _, text := range []string{"", "IPv4"} {
		if err := ValidateIPFamilies(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := ValidateIPFamilies("IPv4,IPv6"); (err == nil) != network.HasIPv6() {
		t.Errorf("both on a machine whose IPv6 is %v: %v", network.HasIPv6(), err)
	}
	for _, text := range []string{"IPv6", "ipv4", "IPv6,IPv4", "IPv4,IPv4"} {
		if err := ValidateIPFamilies(text); err == nil || !strings.Contains(err.Error(), "must be IPv4 or IPv4,IPv6") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Only Pods on a network of ours have IPv6 addresses.
func TestIsDualStack(t *testing.T) {
	for name, tt := range map[string]struct {
		config Config
		want   bool
	}{
		"by default":              {Config{}, network.HasIPv6()},
		"IPv4 was asked for":      {Config{IPFamilies: OnlyIPv4}, false},
		"simulated nodes":         {Config{Simulate: 1}, false},
		"a runtime of somebody's": {Config{RuntimeEndpoint: "unix:///run/x.sock"}, false},
	} {
		if got := (&process{config: tt.config}).isDualStack(); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

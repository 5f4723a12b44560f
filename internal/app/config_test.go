package app

import (
	"strings"
	"testing"

	"mend/internal/network/families"
)

func TestValidateIPFamilies(t *testing.T) {
	for _, text := range []string{"", "IPv4"} {
		if err := ValidateIPFamilies(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := ValidateIPFamilies("IPv4,IPv6"); (err == nil) != families.HasIPv6() {
		t.Errorf("both on a machine whose IPv6 is %v: %v", families.HasIPv6(), err)
	}
	for _, text := range []string{"IPv6", "ipv4", "IPv6,IPv4", "IPv4,IPv4"} {
		if err := ValidateIPFamilies(text); err == nil || !strings.Contains(err.Error(), "must be IPv4 or IPv4,IPv6") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Only Pods on a network of ours have IPv6 addresses.

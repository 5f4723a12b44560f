package hostport

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

func TestAMappingIsEncodedAsTheMapsWantIt(t *testing.T) {
	pod := netip.MustParseAddr("10.42.0.7")
	value := []byte{10, 42, 0, 7, 0, 80, 0, 0}
	for name, tc := range map[string]struct {
		mapping Mapping
		key     []byte
		hasAddr bool
	}{
		"TCP when nothing is said":    {Mapping{HostPort: 8080, ContainerPort: 80}, []byte{6, 0, 0, 0, 0x1f, 0x90, 0, 0}, false},
		"UDP in capitals":             {Mapping{HostPort: 8080, ContainerPort: 80, Protocol: "UDP"}, []byte{17, 0, 0, 0, 0x1f, 0x90, 0, 0}, false},
		"on one address":              {Mapping{HostPort: 1, ContainerPort: 80, HostIP: "127.0.0.1"}, []byte{127, 0, 0, 1, 6, 0, 0, 0, 0, 1, 0, 0}, true},
		"0.0.0.0 is every address":    {Mapping{HostPort: 1, ContainerPort: 80, HostIP: "0.0.0.0"}, []byte{6, 0, 0, 0, 0, 1, 0, 0}, false},
		":: is every address that is": {Mapping{HostPort: 1, ContainerPort: 80, HostIP: "::"}, []byte{6, 0, 0, 0, 0, 1, 0, 0}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e, hasAddr, err := element(pod, tc.mapping)
			if err != nil || hasAddr != tc.hasAddr || !bytes.Equal(e.Key, tc.key) || !bytes.Equal(e.Val, value) {
				t.Errorf("got key %v, value %v, by address %v, %v; want %v, %v, %v", e.Key, e.Val, hasAddr, err, tc.key, value, tc.hasAddr)
			}
		})
	}
}

func TestMappingsThatCannotWorkAreRefusedByName(t *testing.T) {
	pod := netip.MustParseAddr("10.42.0.7")
	for want, m := range map[string]Mapping{
		"carrier-pigeon": {HostPort: 1, Protocol: "carrier-pigeon"},
		"not-an-address": {HostPort: 1, HostIP: "not-an-address"},
		"fd00::1":        {HostPort: 1, HostIP: "fd00::1"},
	} {
		if err := Add("no-such-table", pod, []Mapping{m}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, want an error that names %s", m, err, want)
		}
	}
	if err := Add("no-such-table", pod, []Mapping{{ContainerPort: 80}}); err != nil {
		t.Errorf("a mapping without a host port: %v", err)
	}
}

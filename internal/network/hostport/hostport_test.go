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
		kind    where
	}{
		"TCP when nothing is said":    {Mapping{HostPort: 8080, ContainerPort: 80}, []byte{6, 0, 0, 0, 0x1f, 0x90, 0, 0}, onAny},
		"UDP in capitals":             {Mapping{HostPort: 8080, ContainerPort: 80, Protocol: "UDP"}, []byte{17, 0, 0, 0, 0x1f, 0x90, 0, 0}, onAny},
		"on one address":              {Mapping{HostPort: 1, ContainerPort: 80, HostIP: "127.0.0.1"}, []byte{127, 0, 0, 1, 6, 0, 0, 0, 0, 1, 0, 0}, onAddress},
		"0.0.0.0 is every address":    {Mapping{HostPort: 1, ContainerPort: 80, HostIP: "0.0.0.0"}, []byte{6, 0, 0, 0, 0, 1, 0, 0}, onAny},
		":: is every address that is": {Mapping{HostPort: 1, ContainerPort: 80, HostIP: "::"}, []byte{6, 0, 0, 0, 0, 1, 0, 0}, onAny},
	} {
		t.Run(name, func(t *testing.T) {
			e, kind, err := element(pod, false, tc.mapping)
			if err != nil || kind != tc.kind || !bytes.Equal(e.Key, tc.key) || !bytes.Equal(e.Val, value) {
				t.Errorf("got key %v, value %v, kind %v, %v; want %v, %v, %v", e.Key, e.Val, kind, err, tc.key, value, tc.kind)
			}
		})
	}
}

// Of a Pod with two addresses each leads to its own family's.
func TestAMappingOfAPodWithTwoFamilies(t *testing.T) {
	four, six := netip.MustParseAddr("10.42.0.7"), netip.MustParseAddr("fd00:1::a2a:7")
	for ip, want := range map[string][2]where{
		"": {onAny, onAny}, "0.0.0.0": {onAny, nowhere}, "::": {nowhere, onAny},
		"127.0.0.1": {onAddress, nowhere}, "fd00::1": {nowhere, onAddress},
	} {
		m := Mapping{HostPort: 1, ContainerPort: 80, HostIP: ip}
		_, kind4, err4 := element(four, true, m)
		e, kind6, err6 := element(six, true, m)
		if got := [2]where{kind4, kind6}; got != want || err4 != nil || err6 != nil {
			t.Errorf("%q: %v, %v, %v; want %v", ip, got, err4, err6, want)
		}
		if kind6 == onAddress && (len(e.Key) != 24 || len(e.Val) != 20 || netip.AddrFrom16([16]byte(e.Key[:16])).String() != ip) {
			t.Errorf("%q: key %v, value %v", ip, e.Key, e.Val)
		}
	}
}

func TestMappingsThatCannotWorkAreRefusedByName(t *testing.T) {
	pod := netip.MustParseAddr("10.42.0.7")
	for want, m := range map[string]Mapping{
		"carrier-pigeon": {HostPort: 1, Protocol: "carrier-pigeon"},
		"not-an-address": {HostPort: 1, HostIP: "not-an-address"},
		"fd00::1":        {HostPort: 1, HostIP: "fd00::1"},
	} {
		if err := Add("no-such-table", []netip.Addr{pod}, []Mapping{m}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, want an error that names %s", m, err, want)
		}
	}
	if err := Add("no-such-table", []netip.Addr{pod}, []Mapping{{ContainerPort: 80}}); err != nil {
		t.Errorf("a mapping without a host port: %v", err)
	}
}

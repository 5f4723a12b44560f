package network

import (
	"net/netip"
	"testing"
)

func prefixes(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	var all []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func TestARangeIsChosenFreeOfWhatIsThere(t *testing.T) {
	for name, tc := range map[string]struct {
		id    string
		taken []string
		want  string
	}{
		"the id says where to begin":         {id: "000000", want: "10.42.0.0/24"},
		"another id, another range":          {id: "0000ff", want: "10.42.255.0/24"},
		"the search goes round the pool":     {id: "0000ff", taken: []string{"10.42.255.0/24"}, want: "10.42.0.0/24"},
		"a part of a range is enough":        {id: "000000", taken: []string{"10.42.0.7/32"}, want: "10.42.1.0/24"},
		"a range that covers a whole pool":   {id: "000005", taken: []string{"10.42.0.0/15"}, want: "10.244.5.0/24"},
		"a network that has all of 10":       {id: "000005", taken: []string{"10.0.0.0/8"}, want: "172.30.5.0/24"},
		"what is elsewhere does not matter":  {id: "000001", taken: []string{"192.0.2.0/24", "10.43.0.0/16"}, want: "10.42.1.0/24"},
		"an id that is no number is no harm": {id: "xyz", want: "10.42.0.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := chooseRange(tc.id, prefixes(t, tc.taken...))
			if !ok || got.String() != tc.want {
				t.Errorf("chosen is %v (%v), want %s", got, ok, tc.want)
			}
		})
	}
	if got, ok := chooseRange("000000", prefixes(t, "0.0.0.0/1", "128.0.0.0/1")); ok {
		t.Errorf("with everything taken, %v was chosen", got)
	}
}

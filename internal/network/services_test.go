package network

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"
)

func TestChooseServiceRange(t *testing.T) {
	prefix := netip.MustParsePrefix
	all := []netip.Prefix{prefix("10.96.0.0/11")}
	for name, tt := range map[string]struct {
		id    string
		taken []netip.Prefix
		want  string
	}{
		"the first part for the first id":             {"000000", nil, "10.96.0.0/18"},
		"another part for another id":                 {"000005", nil, "10.97.64.0/18"},
		"the last part":                               {"00007f", nil, "10.127.192.0/18"},
		"ids go round":                                {"000080", nil, "10.96.0.0/18"},
		"the next part when the first is in use":      {"000000", []netip.Prefix{prefix("10.96.12.0/24")}, "10.96.64.0/18"},
		"from the end to the beginning":               {"00007f", []netip.Prefix{prefix("10.127.192.0/18")}, "10.96.0.0/18"},
		"none when a route of the machine covers all": {"000000", all, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := chooseServiceRange(tt.id, tt.taken)
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("chooseServiceRange = %v, %v, want %q", got, ok, tt.want)
			}
		})
	}
}

// Services keep their addresses for ever, so the range stays.
func TestServiceRangeStays(t *testing.T) {
	cfg := Config{InstanceID: "0000a1", DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	first, err := ServiceRange(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Avoid = []netip.Prefix{first} // in use by now, by itself
	if again, err := ServiceRange(cfg); err != nil || again != first {
		t.Errorf("the second time %v, %v, want %v", again, err, first)
	}
	if err := os.WriteFile(cfg.serviceFile(), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ServiceRange(cfg); err == nil {
		t.Errorf("%v from a damaged file, want an error", got)
	}
}

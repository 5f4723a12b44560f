package containerd

import (
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func exampleConfig() Config {
	return Config{
		DataDir: "/var/lib/mend", RunDir: "/run/mend/0a1b2c", InstanceID: "0a1b2c", CgroupParent: "/mend-0a1b2c",
		CNIConfDir: "/var/lib/mend/cni/conf", Log: slog.New(slog.DiscardHandler),
	}
}

func TestTheConfigurationNamesOnlyOurPaths(t *testing.T) {
	text, err := settings{
		Config: exampleConfig(), Bin: "/var/lib/mend/bin/0123", Snapshotter: "overlayfs", RestrictOOMScore: true,
		DisabledPlugins: disabledPlugins, SandboxImage: SandboxImage,
	}.render()
	if err != nil {
		t.Fatal(err)
	}
	// The architecture of the machine is in it.
	text = strings.ReplaceAll(text, settings{}.Platform(), "linux/ARCH")
	golden := filepath.Join("testdata", "containerd.toml")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("the configuration changed (-want +got; -update writes it):\n%s", diff)
	}
	for line := range strings.Lines(text) {
		_, value, ok := strings.Cut(line, `"/`)
		if ok && !strings.HasPrefix(value, "var/lib/mend/") && !strings.HasPrefix(value, "run/mend/0a1b2c/") {
			t.Errorf("a path that is not the instance's own: %s", strings.TrimSpace(line))
		}
	}
}

func TestQuoteEscapesWhatTOMLNeeds(t *testing.T) {
	for in, want := range map[string]string{
		"/plain": `"/plain"`, `a "b" \c`: `"a \"b\" \\c"`, "tab\tend": `"tab\u0009end"`, "ü": `"ü"`,
	} {
		if got := quote(in); got != want {
			t.Errorf("quote(%q) is %s, want %s", in, got, want)
		}
	}
}

func TestPathsThatCannotWorkAreRefused(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"a relative data directory": func(c *Config) { c.DataDir = "data" },
		"a relative run directory":  func(c *Config) { c.RunDir = "run" },
		"a run directory too long for sockets": func(c *Config) {
			c.RunDir = "/run/" + strings.Repeat("x", maxRunDir)
		},
	} {
		c := exampleConfig()
		change(&c)
		if err := c.validate(); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if err := exampleConfig().validate(); err != nil {
		t.Errorf("the usual paths were refused: %v", err)
	}
}

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const goodDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: good}
spec:
  replicas: 1
  selector: {matchLabels: {app: good}}
  template:
    metadata: {labels: {app: good}}
    spec: {containers: [{name: web, image: "mend.local/web:1.0"}]}
`

// TestBadManifests get the error that Kubernetes gives, and lose nothing.
func TestBadManifests(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start("--simulate", "1")
	c.mustApply(goodDeployment)
	change := func(old, changed string) string {
		if !strings.Contains(goodDeployment, old) {
			t.Fatalf("no %q to change", old)
		}
		return strings.Replace(goodDeployment, old, changed, 1)
	}
	for _, tt := range []struct{ name, manifest, want string }{
		{"malformed YAML", "apiVersion: v1\n  kind: [", "error converting YAML to JSON: yaml:"},
		{"unknown field", change("replicas: 1", "replicaz: 1"), `strict decoding error: unknown field "spec.replicaz"`},
		{"wrong type", strings.Replace(change("replicas: 1", "replicas: many"), "{name: good}", "{name: new}", 1), `Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32`},
		{"missing name", change("{name: good}", "{}"), "resource name may not be empty"},
		{"bad name", change("{name: good}", "{name: Not_Good}"), `metadata.name: Invalid value: "Not_Good": a lowercase RFC 1123 subdomain must consist of`},
		{"missing kind", change("kind: Deployment", ""), "kind not set"},
		{"unknown kind", change("kind: Deployment", "kind: Deploymint"), `no matches for kind "Deploymint" in version "apps/v1"`},
		{"mismatched selector", change("matchLabels: {app: good}", "matchLabels: {app: bad}"), "field is immutable"},
		{"mismatched selector of a new one", strings.Replace(change("matchLabels: {app: good}", "matchLabels: {app: bad}"), "{name: good}", "{name: new}", 1), "`selector` does not match template `labels`"},
		{"negative count", change("replicas: 1", "replicas: -1"), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"},
		{"no containers", change(`containers: [{name: web, image: "mend.local/web:1.0"}]`, "containers: []"), "spec.template.spec.containers: Required value"},
		{"no image", change(`, image: "mend.local/web:1.0"`, ""), "spec.template.spec.containers[0].image: Required value"},
		{"surge and unavailable both 0", change("replicas: 1", "strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0}}"), "may not be 0 when `maxSurge` is 0"},
		{"namespace that is not there", change("{name: good}", "{name: good, namespace: nowhere}"), `namespaces "nowhere" not found`},
		{"huge object", change("{name: good}", "{name: good, annotations: {a: \""+strings.Repeat("x", 300<<10)+"\"}}"), "Too long: may not be more than 262144 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := c.apply(tt.manifest)
			if text := got.out + got.err; got.code == 0 || !strings.Contains(text, tt.want) {
				t.Errorf("exit code %d, %q; want %q", got.code, text, tt.want)
			}
		})
	}
	if got := c.mustKubectl("get", "deployment", "good", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"); got != "1 1" {
		t.Errorf("the good Deployment is now %q", got)
	}
}

// TestBadStarts end with one clear line and a non-zero exit, and change nothing.
func TestBadStarts(t *testing.T) {
	mend := binary(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	newer := filepath.Join(t.TempDir(), "newer")
	writeFiles(t, newer, map[string]string{"format": "mend-data-format 99\n", "instance": "abcdef\n"})
	foreign := filepath.Join(t.TempDir(), "foreign")
	writeFiles(t, foreign, map[string]string{"precious": "data"})
	c := &cluster{t: t, dir: t.TempDir(), mend: mend}
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"port taken", []string{"up", "--simulate", "1", "--api-port", port, "--data-dir", c.data()}, "address 127.0.0.1:" + port + " is taken by another program"},
		{"port out of range", []string{"up", "--api-port", "70000"}, "--api-port 70000: must be between 0 and 65535"},
		{"negative nodes", []string{"up", "--simulate", "-1"}, "--simulate -1: must not be negative"},
		{"bad node name", []string{"up", "--node-name", "Not_Good"}, `--node-name "Not_Good"`},
		{"unknown flag", []string{"up", "--nonsense"}, "unknown flag: --nonsense"},
		{"unknown command", []string{"upp"}, `unknown command "upp"`},
		{"data of a newer version", []string{"up", "--simulate", "1", "--data-dir", newer}, "was written by a newer mend"},
		{"somebody else's directory", []string{"up", "--simulate", "1", "--data-dir", foreign}, "carries no stamp of mend's"},
		{"purge of somebody else's directory", []string{"down", "--purge", "--data-dir", foreign}, "carries no stamp of mend's"},
		{"purge and keep", []string{"down", "--purge", "--keep-pods"}, "exclude each other"},
		{"data directory below a file", []string{"up", "--simulate", "1", "--data-dir", filepath.Join(foreign, "precious", "x")}, "not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := c.run(tt.args...)
			lines := strings.Count(strings.TrimSpace(got.err), "\n") + 1
			if got.code == 0 || !strings.Contains(got.err, tt.want) || lines != 1 {
				t.Errorf("exit code %d, %q; want one line with %q", got.code, got.err, tt.want)
			}
		})
	}
	if text, err := os.ReadFile(filepath.Join(foreign, "precious")); err != nil || string(text) != "data" {
		t.Errorf("somebody else's file: %q, %v", text, err)
	}
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoExec is refused before anything is unpacked.
func TestNoExec(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=1g"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	c := &cluster{t: t, dir: t.TempDir(), mend: binary(t)}
	got := c.run("up", "--api-port", "0", "--data-dir", filepath.Join(dir, "data"))
	if got.code == 0 || !strings.Contains(got.err, "noexec") {
		t.Errorf("up = %+v", got)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

// TestNotRoot says what to do instead.
func TestNotRoot(t *testing.T) {
	needRoot(t)
	c := &cluster{t: t, dir: t.TempDir(), mend: binary(t)}
	got := c.runAs(&syscall.Credential{Uid: 65534, Gid: 65534}, "up", "--api-port", "0")
	if got.code == 0 || !strings.Contains(got.err, "not root: run it with sudo") {
		t.Errorf("up = %+v", got)
	}
}

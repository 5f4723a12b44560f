package app

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mend/internal/controller/apiservice"
	"mend/internal/loop"
)

var update = flag.Bool("update", false, "write the golden files")

func declared(name string, writes ...string) loop.Declaration {
	return loop.Declaration{Name: name, Reads: []string{"pods"}, Writes: writes,
		Build: func(loop.Env) (*loop.Loop, error) { return nil, nil }}
}

func TestOneWriterPerField(t *testing.T) {
	tests := []struct {
		name string
		list []loop.Declaration
		want string // a part of the error; empty for none
	}{
		{"different fields of one kind", []loop.Declaration{declared("a", "pods:spec.nodeName"), declared("b", "pods/status")}, ""},
		{"the same subresource", []loop.Declaration{declared("a", "pods/status"), declared("b", "pods/status")}, "a and b both write pods/status"},
		{"a whole kind and its status", []loop.Declaration{declared("a", "pods"), declared("b", "pods/status")}, "both write pods/status"},
		{"a field inside a claimed field", []loop.Declaration{declared("a", "pods:spec.nodeName"), declared("b", "pods:spec")}, "both write pods:spec"},
		{"a kind whose name begins alike", []loop.Declaration{declared("a", "pod"), declared("b", "pods")}, ""},
		{"a loop that says nothing of itself", []loop.Declaration{{Name: "a"}}, "declares no"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := checkOwners(tt.list)
			if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestTheListDeclaresOneWriterPerField holds the real list against its own rule.
func TestTheListDeclaresOneWriterPerField(t *testing.T) {
	if err := checkOwners(loops(nil, apiservice.Config{}, nil, nil)); err != nil {
		t.Error(err)
	}
}

// TestTheGraphIsDocumented keeps docs/loops.md true.
func TestTheGraphIsDocumented(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "loops.md")
	want := loopsPage + graph(loops(nil, apiservice.Config{}, nil, nil))
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("run go test ./internal/app -update:\n%s", diff)
	}
}

const loopsPage = `# Loops

Everything that reconciles, from the one list in internal/app/loops.go. mend refuses to start when two loops declare the
same write. This page is written by the tests of internal/app (` + "`go test ./internal/app -update`" + `).

`

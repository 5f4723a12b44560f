package app

import (
	"strings"
	"testing"

	"mend/internal/loop"
)

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

package kubectl

import (
	"strings"
	"testing"
)

func TestChooseConfig(t *testing.T) {
	const user, home, data = "/home/u/.kube/config", "/home/u/.kube/mend", "/var/lib/mend/kubeconfig"
	tests := []struct {
		name  string
		args  string
		own   string
		files []string
		want  string // KUBECONFIG, or "!" for a problem
	}{
		{"mend's own file by default", "get pods", "", []string{home, data}, home},
		{"the data directory's when the home has none", "get pods", "", []string{data}, data},
		{"--kubeconfig wins", "--kubeconfig other get pods", "", []string{home}, ""},
		{"--kubeconfig= wins", "get pods --kubeconfig=other", "", []string{home}, ""},
		{"a flag behind -- belongs to the container", "exec p -- x --kubeconfig=y", "", []string{home}, home},
		{"--context looks at the user's file, then at mend's", "--context kind get pods", "", []string{home}, user + ":" + home},
		{"--context without mend", "get pods --context=kind", "", nil, user},
		{"MEND_KUBECONFIG names another instance", "get pods", "/x", []string{"/x", home}, "/x"},
		{"MEND_KUBECONFIG that does not exist is not replaced by another cluster", "get pods", "/x", []string{home}, "!"},
		{"nothing there", "get pods", "", nil, "!"},
		{"nothing there, flags first", "-n default get pods", "", nil, "!"},
		{"nothing there, but none needed", "version --client", "", nil, home},
		{"nothing there, help", "get --help", "", nil, home},
		{"nothing there, no command", "", "", nil, home},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exists := func(path string) bool {
				for _, file := range tt.files {
					if file == path {
						return true
					}
				}
				return false
			}
			got := chooseConfig(strings.Fields(tt.args), []string{home, data}, tt.own, user, exists)
			if (got.problem != "") != (tt.want == "!") {
				t.Fatalf("problem = %q, want %q", got.problem, tt.want)
			}
			if got.problem == "" && got.env != tt.want {
				t.Errorf("KUBECONFIG = %q, want %q", got.env, tt.want)
			}
		})
	}
}

package deployment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// readTemplate reads a template with all defaults, in the form that informers
// hand out: decoded from protobuf.
func readTemplate(t *testing.T, name string) v1.PodTemplateSpec {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "templates", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var typed, template v1.PodTemplateSpec
	if err := yaml.UnmarshalStrict(data, &typed); err != nil {
		t.Fatal(err)
	}
	wire, err := typed.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := template.Unmarshal(wire); err != nil {
		t.Fatal(err)
	}
	return template
}

// The expected hashes were computed with ComputeHash of k8s.io/kubernetes v1.37.2
// (pkg/controller) from the same templates: names look as they would there.
func TestTemplateHashIsKubernetes(t *testing.T) {
	tests := []struct {
		template   string
		collisions *int32
		want       string
	}{
		{"web", nil, "56956f4c67"},
		{"web", ptr.To[int32](0), "6657d97567"},
		{"web", ptr.To[int32](1), "b8c5f4bf4"},
		{"web", ptr.To[int32](2), "77c98f9997"},
		{"hello-deployment", nil, "6547fb745b"},
		{"hello-deployment", ptr.To[int32](1), "65c5df75b5"},
		{"rich", nil, "77b8cff7c4"},
		{"rich", ptr.To[int32](2), "5844d54b76"},
	}
	for _, test := range tests {
		if got := templateHash(readTemplate(t, test.template), test.collisions); got != test.want {
			t.Errorf("hash of %s with collisions %v: %s, want %s", test.template, ptr.Deref(test.collisions, -1), got, test.want)
		}
	}
}

func TestSameTemplateIgnoresTheHashLabelOnly(t *testing.T) {
	base := readTemplate(t, "rich")
	hashed := *base.DeepCopy()
	hashed.Labels[hashLabel] = "abc"
	if !sameTemplate(&base, &hashed) || !sameTemplate(&hashed, &base) {
		t.Error("templates that differ by the hash label are told apart")
	}
	if hashed.Labels[hashLabel] != "abc" {
		t.Error("comparing took the label off")
	}
	changes := map[string]func(*v1.PodTemplateSpec){
		"label":      func(p *v1.PodTemplateSpec) { p.Labels["app"] = "other" },
		"annotation": func(p *v1.PodTemplateSpec) { p.Annotations["kubectl.kubernetes.io/restartedAt"] = "now" },
		"image":      func(p *v1.PodTemplateSpec) { p.Spec.Containers[0].Image = "other" },
	}
	for name, change := range changes {
		other := *hashed.DeepCopy()
		change(&other)
		if sameTemplate(&base, &other) {
			t.Errorf("a change of %s goes unnoticed", name)
		}
	}
}

func TestReplicaSetNameIsCutToFit(t *testing.T) {
	if got := replicaSetName("web", "abc"); got != "web-abc" {
		t.Errorf("name %q", got)
	}
	got := replicaSetName(strings.Repeat("x", 253), "56956f4c67")
	if len(got) != 253 || !strings.HasSuffix(got, "x-56956f4c67") {
		t.Errorf("name of %d characters: %q", len(got), got)
	}
}

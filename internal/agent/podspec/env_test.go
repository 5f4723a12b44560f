package podspec

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// objects are the sources of a test, by name.
type objects struct {
	configMaps map[string]map[string]string
	secrets    map[string]map[string][]byte
	services   []*v1.Service
}

func (o objects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	if data, ok := o.configMaps[name]; ok {
		return &v1.ConfigMap{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
}

func (o objects) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if data, ok := o.secrets[name]; ok {
		return &v1.Secret{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
}

func (o objects) Services() ([]*v1.Service, error) { return o.services, nil }

func TestExpand(t *testing.T) {
	known := map[string]string{"A": "1", "B": "$(A)"}
	for text, want := range map[string]string{
		"":             "",
		"plain":        "plain",
		"$(A)":         "1",
		"x$(A)y$(A)":   "x1y1",
		"$(NONE)":      "$(NONE)",
		"$$(A)":        "$(A)",
		"$$$(A)":       "$1",
		"$$$$(A)":      "$$(A)",
		"$(B)":         "$(A)",
		"$(A":          "$(A",
		"$A $":         "$A $",
		"$":            "$",
		"$()":          "$()",
		"cost: $5":     "cost: $5",
		"$(A)$(A":      "1$(A",
		"é$(A)é":       "é1é",
		"$(a b) $(A)!": "$(a b) 1!",
	} {
		got := Expand(text, func(n string) (string, bool) { v, ok := known[n]; return v, ok })
		if got != want {
			t.Errorf("Expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func cmRef(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }

func keyOf(cm, key string, optional *bool) *v1.EnvVarSource {
	return &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: cmRef(cm), Key: key, Optional: optional}}
}

func testPod(c v1.Container) *v1.Pod {
	yes := true
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"app": "x"}},
		Spec:       v1.PodSpec{NodeName: "n", ServiceAccountName: "sa", EnableServiceLinks: &yes, Containers: []v1.Container{c}},
	}
}

func TestEnv(t *testing.T) {
	yes := true
	src := objects{
		configMaps: map[string]map[string]string{"cm": {"z": "cm-z", "b": "cm-b"}},
		secrets:    map[string]map[string][]byte{"s": {"k": []byte("secret")}},
		services: []*v1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"},
			Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []v1.ServicePort{{Name: "https", Port: 443}}}}},
	}
	field := func(path string) *v1.EnvVarSource {
		return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	c := v1.Container{Name: "c",
		EnvFrom: []v1.EnvFromSource{
			{Prefix: "P_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: cmRef("cm")}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: cmRef("none"), Optional: &yes}},
		},
		Env: []v1.EnvVar{
			{Name: "FIRST", Value: "1"},
			{Name: "ALL", Value: "$(FIRST) $(P_z) $(KUBERNETES_SERVICE_HOST) $(LATER)"},
			{Name: "P_b", Value: "mine"},
			{Name: "EMPTY", Value: ""},
			{Name: "CM", ValueFrom: keyOf("cm", "z", nil)},
			{Name: "MAYBE", ValueFrom: keyOf("cm", "none", &yes)},
			{Name: "SECRET", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: cmRef("s"), Key: "k"}}},
			{Name: "IP", ValueFrom: field("status.podIP")},
			{Name: "HOST", ValueFrom: field("status.hostIP")},
			{Name: "NAME", ValueFrom: field("metadata.name")},
			{Name: "LABEL", ValueFrom: field("metadata.labels['app']")},
			{Name: "CPU", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1m")}}},
			{Name: "LATER", Value: "x"},
			{Name: "FIRST", Value: "last"},
		},
		Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}},
	}
	host := Host{NodeIPs: []string{"192.0.2.1"}}
	got, err := host.Env(context.Background(), testPod(c), &c, []string{"10.1.1.1"}, src)
	if err != nil {
		t.Fatal(err)
	}
	want := []EnvVar{
		{"FIRST", "last"}, {"ALL", "1 cm-z 10.0.0.1 $(LATER)"}, {"P_b", "mine"}, {"EMPTY", ""}, {"CM", "cm-z"}, {"SECRET", "secret"},
		{"IP", "10.1.1.1"}, {"HOST", "192.0.2.1"}, {"NAME", "p"}, {"LABEL", "x"}, {"CPU", "250"}, {"LATER", "x"},
		{"P_z", "cm-z"},
		{"KUBERNETES_PORT", "tcp://10.0.0.1:443"}, {"KUBERNETES_PORT_443_TCP", "tcp://10.0.0.1:443"},
		{"KUBERNETES_PORT_443_TCP_ADDR", "10.0.0.1"}, {"KUBERNETES_PORT_443_TCP_PORT", "443"}, {"KUBERNETES_PORT_443_TCP_PROTO", "tcp"},
		{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"KUBERNETES_SERVICE_PORT", "443"}, {"KUBERNETES_SERVICE_PORT_HTTPS", "443"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestEnvSaysWhatIsMissing(t *testing.T) {
	src := objects{configMaps: map[string]map[string]string{"cm": {}}, secrets: map[string]map[string][]byte{"s": {}}}
	for want, c := range map[string]v1.Container{
		`configmap "x" not found`:                  {Env: []v1.EnvVar{{Name: "A", ValueFrom: keyOf("x", "k", nil)}}},
		"couldn't find key k in ConfigMap ns/cm":   {Env: []v1.EnvVar{{Name: "A", ValueFrom: keyOf("cm", "k", nil)}}},
		`secret "x" not found`:                     {EnvFrom: []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: cmRef("x")}}}},
		"couldn't find key k in Secret ns/s":       {Env: []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: cmRef("s"), Key: "k"}}}}},
		"field label not supported: spec.nothing":  {Env: []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nothing"}}}}},
		"unsupported container resource : limits.": {Env: []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits."}}}}},
	} {
		_, err := Host{}.Env(context.Background(), testPod(c), &c, nil, src)
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestServiceVariables(t *testing.T) {
	service := func(ns, name, ip string, ports ...v1.ServicePort) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports}}
	}
	all := []*v1.Service{
		service("ns", "my-db", "10.0.0.2", v1.ServicePort{Port: 5432}, v1.ServicePort{Name: "m-x", Port: 53, Protocol: v1.ProtocolUDP}),
		service("ns", "headless", "None", v1.ServicePort{Port: 1}),
		service("ns", "external", ""),
		service("other", "not-mine", "10.0.0.3", v1.ServicePort{Port: 1}),
	}
	want := map[string]string{
		"MY_DB_SERVICE_HOST": "10.0.0.2", "MY_DB_SERVICE_PORT": "5432", "MY_DB_SERVICE_PORT_M_X": "53", "MY_DB_PORT": "tcp://10.0.0.2:5432",
		"MY_DB_PORT_5432_TCP": "tcp://10.0.0.2:5432", "MY_DB_PORT_5432_TCP_PROTO": "tcp", "MY_DB_PORT_5432_TCP_PORT": "5432", "MY_DB_PORT_5432_TCP_ADDR": "10.0.0.2",
		"MY_DB_PORT_53_UDP": "udp://10.0.0.2:53", "MY_DB_PORT_53_UDP_PROTO": "udp", "MY_DB_PORT_53_UDP_PORT": "53", "MY_DB_PORT_53_UDP_ADDR": "10.0.0.2",
	}
	if diff := cmp.Diff(want, serviceVars(all, "ns", true)); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	if got := serviceVars(all, "ns", false); len(got) != 0 {
		t.Errorf("without links: %v", got)
	}
}

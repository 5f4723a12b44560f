package sim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

func TestMembersAreFoundByTheirPod(t *testing.T) {
	of := func(uid string) map[string]string { return map[string]string{kubelettypes.KubernetesPodUIDLabel: uid} }
	b := byPod[string]{}
	b.add(of("a"), "a1")
	b.add(of("b"), "b1")
	b.add(of("a"), "a2")
	b.add(nil, "nobody's")
	asked := func(selector map[string]string, want []string, wantNamed bool) {
		t.Helper()
		got, named := b.asked(selector)
		if diff := cmp.Diff(want, got); diff != "" || named != wantNamed {
			t.Errorf("%v: named %v (-want +got):\n%s", selector, named, diff)
		}
	}
	asked(of("a"), []string{"a1", "a2"}, true)
	asked(of("c"), nil, true)
	asked(map[string]string{"app": "x"}, nil, false)
	b.remove(of("a"), "a1")
	asked(of("a"), []string{"a2"}, true)
	b.remove(of("a"), "a2")
	b.remove(of("b"), "b1")
	if len(b) != 0 {
		t.Errorf("%d Pods are remembered that have nothing", len(b))
	}
}

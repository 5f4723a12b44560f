package view

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestIndexKeys(t *testing.T) {
	bound := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: v1.PodSpec{NodeName: "one"}}
	owned := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", OwnerReferences: []metav1.OwnerReference{
		{UID: "an-owner"}, {UID: "the-controller", Controller: ptr.To(true)},
	}}}
	for _, tt := range []struct {
		name  string
		index func(any) ([]string, error)
		obj   any
		want  []string
	}{
		{"a controlled object is under its controller, not another owner", ByController, owned, []string{"the-controller"}},
		{"an object without a controller is among its namespace's orphans", ByController, bound, []string{OrphansOf("shop")}},
		{"a bound Pod is under its node", ByNode, bound, []string{"one"}},
		{"a Pod without a node is nowhere", ByNode, owned, nil},
		{"what is no Pod is on no node", ByNode, &v1.Node{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.index(tt.obj)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := ByController("no object"); err == nil {
		t.Error("what has no metadata gave no error")
	}
}

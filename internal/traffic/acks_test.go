package traffic

import (
	"fmt"
	"testing"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who deletes a Lease ends no proxy: the one of this process is still waited for, or the
// next Pod would end before the kernel has let go of it. Another node's has withdrawn.
func TestADeletedLeaseIsNotTheEndOfThisProxy(t *testing.T) {
	lease := func(node string) *coordination.Lease {
		return &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: LeaseName(node), Annotations: map[string]string{Annotation: "5"}},
			Spec: coordination.LeaseSpec{HolderIdentity: &node}}
	}
	for _, deleted := range []func(s ackStore) error{
		func(s ackStore) error {
			if err := s.Delete(lease("here")); err != nil {
				return err
			}
			return s.Delete(lease("there"))
		},
		func(s ackStore) error { return s.Replace(nil, "") }, // missed, and found in the next list
	} {
		acks := NewAcks("here")
		s := ackStore{acks}
		if err := s.Replace([]any{lease("here"), lease("there")}, ""); err != nil {
			t.Fatal(err)
		}
		acks.Programmed(5)
		if err := deleted(s); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(acks.behind(6)); got != "[here]" {
			t.Errorf("waits for %s, want [here]", got)
		}
		acks.Programmed(6)
		if got := acks.behind(6); len(got) > 0 {
			t.Errorf("waits for %v, which has confirmed", got)
		}
	}
}

package store

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func reason(readOnly bool) metav1.StatusReason {
	if readOnly {
		return ReasonNoSpace
	}
	return metav1.StatusReasonUnknown
}

func TestWithoutRoomOnlyVitalWritesAndDeletionsPass(t *testing.T) {
	s := open(t, t.TempDir())
	put := func(key string) error {
		_, err := s.Client().Txn(limited(t)).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, "x")).Else(clientv3.OpGet(key)).Commit()
		return err
	}
	for _, tt := range []struct {
		free     uint64
		readOnly bool
	}{{closeBelow, false}, {closeBelow - 1, true}, {closeBelow, true}, {openAbove - 1, true}, {openAbove, false}, {closeBelow, false}} {
		s.space.free = func(string) (uint64, error) { return tt.free, nil }
		err := put("/registry/configmaps/default/a")
		if apierrors.ReasonForError(err) != reason(tt.readOnly) {
			t.Errorf("%d bytes free: %v", tt.free, err)
		}
		if _, err := s.Client().Put(limited(t), "/registry/x", "1"); (err != nil) != tt.readOnly {
			t.Errorf("%d bytes free, put: %v", tt.free, err)
		}
		if err := put("/registry/leases/kube-node-lease/n"); err != nil {
			t.Errorf("%d bytes free, heartbeat: %v", tt.free, err)
		}
		if _, err := s.Client().Delete(limited(t), "/registry/configmaps/default/a"); err != nil {
			t.Errorf("%d bytes free, delete: %v", tt.free, err)
		}
		if err := s.Health(limited(t)); (err != nil) != tt.readOnly || err != nil && !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%d bytes free, health: %v", tt.free, err)
		}
	}
}

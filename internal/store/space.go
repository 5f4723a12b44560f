package store

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// With less room than closeBelow the store takes no writes, and again from
	// openAbove on. etcd ends its process when it meets a full disk; what is kept
	// free is a few times what it asks for at once (16 MiB).
	closeBelow = 48 << 20
	openAbove  = 64 << 20
)

// ReasonNoSpace is the reason in the status that a refused write gets, with the code
// 507.
const ReasonNoSpace metav1.StatusReason = "InsufficientStorage"

// vital are the keys whose writes go on: they are few and small, and without them a
// full disk would count as a dead node, and old revisions would never be dropped.
var vital = []string{"/registry/leases/kube-node-lease/", "/registry/minions/", "compact_rev_key"}

// space watches the room on the file system of the state, by asking at each write.
type space struct {
	dir    string
	free   func(dir string) (uint64, error)
	closed atomic.Bool
}

func newSpace(dir string) *space { return &space{dir: dir, free: freeBytes} }

func freeBytes(dir string) (uint64, error) {
	var stat unix.Statfs_t
	err := unix.Statfs(dir, &stat)
	return stat.Bavail * uint64(stat.Bsize), err
}

// check is nil while there is room.
func (s *space) check() error {
	free, err := s.free(s.dir)
	if err != nil {
		return nil // etcd's own error will be the better one
	}
	limit := uint64(closeBelow)
	if s.closed.Load() {
		limit = openAbove
	}
	s.closed.Store(free < limit)
	if free >= limit {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure,
		Code:   http.StatusInsufficientStorage,
		Reason: ReasonNoSpace,
		Message: fmt.Sprintf("the API is read-only: %d MiB are free on the file system of %s, and writes need %d MiB; Pods run on",
			free>>20, s.dir, limit>>20),
	}}
}

// guarded is a client's KV that refuses to write without room. Deletions pass: they
// make room.
type guarded struct {
	clientv3.KV
	space *space
}

func (g guarded) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	if err := g.refuse(clientv3.OpPut(key, value)); err != nil {
		return nil, err
	}
	return g.KV.Put(ctx, key, value, opts...)
}

func (g guarded) Txn(ctx context.Context) clientv3.Txn {
	return &guardedTxn{Txn: g.KV.Txn(ctx), guard: g}
}

func (g guarded) refuse(ops ...clientv3.Op) error {
	for _, op := range ops {
		if op.IsPut() && !isVital(string(op.KeyBytes())) {
			return g.space.check()
		}
	}
	return nil
}

func isVital(key string) bool {
	for _, prefix := range vital {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

type guardedTxn struct {
	clientv3.Txn
	guard guarded
	ops   []clientv3.Op
}

func (t *guardedTxn) If(comparisons ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(comparisons...)
	return t
}

func (t *guardedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.ops = t.Txn.Then(ops...), append(t.ops, ops...)
	return t
}

func (t *guardedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.ops = t.Txn.Else(ops...), append(t.ops, ops...)
	return t
}

func (t *guardedTxn) Commit() (*clientv3.TxnResponse, error) {
	if err := t.guard.refuse(t.ops...); err != nil {
		return nil, err
	}
	return t.Txn.Commit()
}

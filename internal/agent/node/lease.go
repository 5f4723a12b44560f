package node

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	leaseSeconds = 40
	renewPeriod  = 10 * time.Second
	renewRetry   = time.Second
)

// renewLease keeps the node's Lease fresh. A failure is tried again soon, so that
// a few of them do not make the node look dead.
func (m *Manager) renewLease(ctx context.Context) {
	var lease *coordinationv1.Lease
	wait := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.cfg.Clock.After(wait):
		}
		var err error
		lease, err = m.renew(ctx, lease)
		wait = renewPeriod
		if err != nil {
			wait = renewRetry
			if ctx.Err() == nil {
				m.cfg.Log.Warn("cannot renew the node's lease", "err", err)
			}
		}
	}
}

// renew writes the time into the lease as last seen, or into the one that the API
// has. It returns nil where it has to be read again.
func (m *Manager) renew(ctx context.Context, known *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	leases := m.cfg.Client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	if known == nil {
		have, err := leases.Get(ctx, m.cfg.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return writtenOrNil(leases.Create(ctx, m.fill(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Name: m.cfg.Name, Namespace: v1.NamespaceNodeLease,
			}}), metav1.CreateOptions{}))
		}
		if err != nil {
			return nil, err
		}
		known = have
	}
	return writtenOrNil(leases.Update(ctx, m.fill(known.DeepCopy()), metav1.UpdateOptions{}))
}

// writtenOrNil drops the empty object that a client returns beside an error.
func writtenOrNil(lease *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (m *Manager) fill(lease *coordinationv1.Lease) *coordinationv1.Lease {
	seconds, now := int32(leaseSeconds), metav1.NewMicroTime(m.cfg.Clock.Now())
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &m.cfg.Name, &seconds, &now
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil {
		// The lease goes with its node.
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: m.last.Name, UID: m.last.UID}}
	}
	return lease
}

package traffic

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const (
	// Namespace is where the confirmations are.
	Namespace = metav1.NamespaceSystem
	// Annotation holds the resourceVersion of EndpointSlices that a node has reached.
	Annotation = "mend.local/programmed-endpointslices"
	// Label is on every confirmation.
	Label = "mend.local/proxy"

	leasePrefix = "mend-proxy-"
	// pause is the least time between two writes of one node: while Pods come and go by
	// the hundred, a write confirms what came in meanwhile.
	pause      = 20 * time.Millisecond
	retryFirst = 50 * time.Millisecond
	retryMost  = 5 * time.Second
	writeLimit = 5 * time.Second
)

// LeaseName is the name of a node's confirmation. Names that would be too long end in a
// hash.
func LeaseName(node string) string {
	name := leasePrefix + node
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(node))
	return leasePrefix + hex.EncodeToString(sum[:20])
}

// Acknowledger writes one node's confirmations. Its methods may be called from any
// goroutine.
type Acknowledger struct {
	client kubernetes.Interface
	node   string
	log    *slog.Logger

	mu     sync.Mutex
	newest uint64
	wake   chan struct{}
}

// NewAcknowledger returns one for the node of that name.
func NewAcknowledger(client kubernetes.Interface, node string, log *slog.Logger) *Acknowledger {
	return &Acknowledger{client: client, node: node, log: log, wake: make(chan struct{}, 1)}
}

// Announce makes sure that the node's confirmation exists, before the proxy programs
// anything: nobody waits for a node that has none. What an earlier proxy confirmed stays,
// since its table stays too.
func (a *Acknowledger) Announce(ctx context.Context) error {
	// Looked for first: a write may be refused, on a full disk, when none is needed.
	if _, err := a.client.CoordinationV1().Leases(Namespace).Get(ctx, LeaseName(a.node), metav1.GetOptions{}); err == nil {
		return nil
	}
	lease := &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: LeaseName(a.node),
			Labels: map[string]string{Label: ""}, Annotations: map[string]string{Annotation: "0"},
		},
		Spec: coordination.LeaseSpec{HolderIdentity: &a.node, RenewTime: ptr.To(metav1.NowMicro())},
	}
	_, err := a.client.CoordinationV1().Leases(Namespace).Create(ctx, lease, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("announce the proxy of node %s: %w", a.node, err)
	}
	return nil
}

// Belong makes the confirmation go with the Node, which has registered by now: nobody
// shall wait for a node that was removed.
func (a *Acknowledger) Belong(ctx context.Context, node types.UID) error {
	lease, err := a.client.CoordinationV1().Leases(Namespace).Get(ctx, LeaseName(a.node), metav1.GetOptions{})
	if err == nil && len(lease.OwnerReferences) == 1 && lease.OwnerReferences[0].UID == node {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: a.node, UID: node},
	}}})
	if err != nil {
		return err
	}
	_, err = a.client.CoordinationV1().Leases(Namespace).Patch(ctx, LeaseName(a.node), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("bind the proxy of node %s to its Node: %w", a.node, err)
	}
	return nil
}

// Withdraw removes the node's confirmation, once its rules are gone for good.
func (a *Acknowledger) Withdraw(ctx context.Context) error {
	err := a.client.CoordinationV1().Leases(Namespace).Delete(ctx, LeaseName(a.node), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("withdraw the proxy of node %s: %w", a.node, err)
	}
	return nil
}

// Programmed notes up to which version everything is in the kernel. It does not block.
func (a *Acknowledger) Programmed(version uint64) {
	a.mu.Lock()
	a.newest = version
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run writes what Programmed noted, until ctx ends.
func (a *Acknowledger) Run(ctx context.Context) {
	var written uint64
	wait := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			a.mu.Lock()
			newest := a.newest
			a.mu.Unlock()
			if newest == written {
				wait = 0
				break
			}
			if err := a.write(ctx, newest); err != nil {
				a.log.Warn("cannot confirm what the proxy has done; Pods may end later", "err", err)
				wait = min(max(2*wait, retryFirst), retryMost)
				continue
			}
			written, wait = newest, pause
		}
	}
}

// write patches the annotation: nobody else writes it, so there is nothing to compare.
func (a *Acknowledger) write(ctx context.Context, version uint64) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{Annotation: strconv.FormatUint(version, 10)}},
		"spec":     map[string]any{"renewTime": metav1.NowMicro()},
	})
	if err != nil {
		return err
	}
	_, err = a.client.CoordinationV1().Leases(Namespace).Patch(ctx, LeaseName(a.node), types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		// Somebody deleted it; the next patch finds it.
		return errors.Join(err, a.Announce(ctx))
	}
	return err
}

// confirmation reads a node's name and what it confirmed.
func confirmation(lease *coordination.Lease) (node string, version uint64, ok bool) {
	if lease.Spec.HolderIdentity == nil {
		return "", 0, false
	}
	version, err := strconv.ParseUint(lease.Annotations[Annotation], 10, 64)
	return *lease.Spec.HolderIdentity, version, err == nil
}

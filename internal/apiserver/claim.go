package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"
)

// claim is what one write to a Service takes and gives back. It ends in settle.
type claim struct {
	book            *addressBook
	service         *core.Service
	holder          types.UID
	dryRun          bool
	addresses       []netip.Addr // taken by this write
	ports           []int
	droppedAddress  []netip.Addr // given back if it succeeds
	droppedNodePort []int
}

func (b *addressBook) claim(s *core.Service, dryRun bool) *claim {
	return &claim{book: b, service: s, holder: s.UID, dryRun: dryRun}
}

// settle keeps what was taken if the write succeeded, and gives it back if not. An address
// is free once its IPAddress is gone.
func (c *claim) settle(ctx context.Context, success bool) {
	addresses, ports := c.droppedAddress, c.droppedNodePort
	if !success || c.dryRun {
		addresses, ports = c.addresses, c.ports
	}
	name := types.NamespacedName{Namespace: c.service.Namespace, Name: c.service.Name}
	for _, a := range addresses {
		if !c.dryRun {
			if err := c.book.unrecord(ctx, name, a); err != nil {
				slog.WarnContext(ctx, "an IPAddress stays until it is collected", "address", a, "service", name, "err", err)
			}
		}
		c.book.release(a, c.holder)
	}
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	for _, n := range ports {
		c.book.ports.release(n, c.holder)
	}
}

// takeAddress takes the address that was asked for, or any of the family. What the watch
// cache does not know is asked for at the store: somebody may create a ServiceCIDR and at
// once a Service in it. An address that was asked for keeps its text.
func (c *claim) takeAddress(ctx context.Context, family core.IPFamily, asked string) (string, error) {
	var want netip.Addr
	if asked != "" {
		var err error
		if want, err = netip.ParseAddr(asked); err != nil {
			return "", err
		}
	} else if c.isKubernetes() && family == c.book.families[0] {
		want = c.book.ofKubernetes()
	}
	var taken netip.Addr
	for _, version := range []string{"0", ""} {
		ranges, err := c.book.ranges(ctx, family, version)
		if err != nil {
			return "", err
		}
		if want.IsValid() {
			taken, err = c.takeThis(ctx, ranges, want, asked != "")
		} else {
			taken, err = c.takeAny(ctx, ranges)
		}
		if errors.Is(err, errWrongRange) || errors.Is(err, errFull) {
			if version == "0" {
				continue
			}
		}
		if err != nil {
			return "", err
		}
		break
	}
	return cmp.Or(asked, taken.String()), nil
}

func (c *claim) isKubernetes() bool {
	return c.service.Namespace == metav1.NamespaceDefault && c.service.Name == "kubernetes"
}

func (c *claim) takeThis(ctx context.Context, ranges []addressRange, a netip.Addr, asked bool) (netip.Addr, error) {
	if !inRanges(ranges, a) {
		return a, errWrongRange
	}
	c.book.mu.Lock()
	had := asked && c.book.holders[a] == c.holder && c.holder != ""
	c.book.mu.Unlock()
	if had {
		return a, nil
	}
	ok, err := c.tryTake(ctx, a)
	if err == nil && !ok {
		err = errIPTaken
	}
	return a, err
}

func (c *claim) takeAny(ctx context.Context, ranges []addressRange) (netip.Addr, error) {
	for _, r := range ranges {
		for a := range r.candidates() {
			if a == c.book.ofKubernetes() {
				continue
			}
			if ok, err := c.tryTake(ctx, a); ok || err != nil {
				return a, err
			}
		}
	}
	return netip.Addr{}, errFull
}

// tryTake takes the address unless somebody has it.
func (c *claim) tryTake(ctx context.Context, a netip.Addr) (bool, error) {
	if !c.book.hold(a, c.holder) {
		return false, nil
	}
	if !c.dryRun {
		if err := c.book.record(ctx, c.service, a); err != nil {
			c.book.release(a, c.holder)
			if errors.Is(err, errIPTaken) {
				return false, nil
			}
			return false, err
		}
	}
	c.addresses = append(c.addresses, a)
	return true, nil
}

// takePort takes the node port that was asked for, or any if it is 0.
func (c *claim) takePort(asked int) (int, error) {
	b := c.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked == 0 {
		number, err := b.ports.pick(c.holder)
		if err == nil {
			c.ports = append(c.ports, number)
		}
		return number, err
	}
	if asked < b.ports.first || asked > b.ports.last {
		return 0, fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", b.portRange)
	}
	if _, taken := b.ports.holders[asked]; taken {
		return 0, errPortTaken
	}
	b.ports.holders[asked] = c.holder
	c.ports = append(c.ports, asked)
	return asked, nil
}

// dropAll gives back everything that s holds once the write has succeeded.
func (c *claim) dropAll(s *core.Service) {
	c.droppedAddress = append(c.droppedAddress, addressesOf(s)...)
	c.droppedNodePort = append(c.droppedNodePort, nodePortsOf(s)...)
}

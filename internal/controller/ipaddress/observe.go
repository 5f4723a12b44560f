package ipaddress

import (
	"context"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// observeService returns nil for a Service that is not there or has no address.
func (c *controller) observeService(key string) (*v1.Service, []Claim, []netip.Prefix, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := c.services.Services(namespace).Get(name)
	if err != nil || s.Spec.Type == v1.ServiceTypeExternalName {
		return nil, nil, nil, nil // a lister over a cache fails only for what is not there
	}
	var claims []Claim
	for _, ip := range s.Spec.ClusterIPs {
		claim := Claim{Address: ip}
		if r, err := c.records.Get(recordName(ip)); err == nil {
			claim.Record, claim.Named = r, c.named(r)
		}
		claims = append(claims, claim)
	}
	return s, claims, c.ranges(), nil
}

// readClaims is what the server has of a Service's addresses.
func (c *controller) readClaims(ctx context.Context, s *v1.Service) ([]Claim, error) {
	var claims []Claim
	if s.Spec.Type == v1.ServiceTypeExternalName {
		return nil, nil
	}
	for _, ip := range s.Spec.ClusterIPs {
		claim := Claim{Address: ip}
		if ip != v1.ClusterIPNone {
			r, err := c.client.NetworkingV1().IPAddresses().Get(ctx, recordName(ip), metav1.GetOptions{})
			switch {
			case err == nil:
				claim.Record = r
				if claim.Named, err = c.readNamed(ctx, r); err != nil {
					return nil, err
				}
			case !apierrors.IsNotFound(err):
				return nil, fmt.Errorf("read IPAddress %s: %w", ip, err)
			}
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// readNamed is what the server has of the Service that an IPAddress refers to.
func (c *controller) readNamed(ctx context.Context, r *networkingv1.IPAddress) (*v1.Service, error) {
	if !refersToService(r) {
		return nil, nil
	}
	return c.readService(ctx, r.Spec.ParentRef.Namespace, r.Spec.ParentRef.Name)
}

// readService returns nil for a Service that the server has not.
func (c *controller) readService(ctx context.Context, namespace, name string) (*v1.Service, error) {
	s, err := c.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Service %s/%s: %w", namespace, name, err)
	}
	return s, nil
}

// observeRecord returns an IPAddress and its Service, nil for what is not there.
func (c *controller) observeRecord(name string) (*networkingv1.IPAddress, *v1.Service) {
	r, err := c.records.Get(name)
	if err != nil {
		return nil, nil
	}
	return r, c.named(r)
}

func (c *controller) named(r *networkingv1.IPAddress) *v1.Service {
	if !refersToService(r) {
		return nil
	}
	s, err := c.services.Services(r.Spec.ParentRef.Namespace).Get(r.Spec.ParentRef.Name)
	if err != nil {
		return nil
	}
	return s
}

// ranges are those of all ServiceCIDRs, in whatever state: who has an address of one that
// is being deleted keeps it.
func (c *controller) ranges() []netip.Prefix {
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return nil
	}
	var ranges []netip.Prefix
	for _, one := range all {
		for _, text := range one.Spec.CIDRs {
			if r, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, r)
			}
		}
	}
	return ranges
}

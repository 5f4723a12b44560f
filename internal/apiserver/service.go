package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"
	serviceapi "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

// serviceHooks keep the address book while Services are written.
type serviceHooks struct {
	services *resource
	book     *addressBook
}

// attach hooks the book into the storage. Status updates go past it, but may
// remove a finalizer and so delete the Service.
func (h *serviceHooks) attach() {
	h.services.BeginCreate = h.beginCreate
	h.services.BeginUpdate = h.beginUpdate
	h.services.AfterDelete = func(obj runtime.Object, options *metav1.DeleteOptions) {
		if dryrun.IsDryRun(options.DryRun) {
			return
		}
		s := obj.(*core.Service)
		c := h.book.claim(s, false)
		c.dropAll(s)
		c.settle(context.Background(), true)
	}
}

func (h *serviceHooks) beginCreate(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	s := obj.(*core.Service)
	// Old clients know only the singular field.
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	return h.change(ctx, s, nil, dryrun.IsDryRun(options.DryRun))
}

func (h *serviceHooks) beginUpdate(ctx context.Context, obj, old runtime.Object, options *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	s, before := obj.(*core.Service), old.(*core.Service)
	keepAllocated(s, before)
	syncClusterIPs(s, before)
	return h.change(ctx, s, before, dryrun.IsDryRun(options.DryRun))
}

// change takes what the Service needs and did not have, and notes what it no
// longer needs.
func (h *serviceHooks) change(ctx context.Context, s, old *core.Service, dryRun bool) (genericregistry.FinishFunc, error) {
	if err := h.book.load(ctx); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	c := h.book.claim(s, dryRun)
	if err := h.book.defaultFamilies(s, old); err != nil {
		return nil, err
	}
	err := c.clusterIPs(ctx, s, old)
	if err == nil {
		err = c.nodePorts(s, old)
	}
	if err == nil {
		err = c.healthPort(s, old)
	}
	if err != nil {
		c.settle(ctx, false)
		return nil, err
	}
	return func(ctx context.Context, success bool) { c.settle(ctx, success) }, nil
}

// clusterIPs takes an address of each family that the Service has none of, unless it is
// headless or a name only, and gives up that of a family which it has no more. Validation
// refuses other changes.
func (c *claim) clusterIPs(ctx context.Context, s, old *core.Service) error {
	if !hasClusterIP(s) {
		if old != nil && hasClusterIP(old) {
			c.droppedAddress = addressesOf(old)
		}
		return nil
	}
	had := 0
	if old != nil && hasClusterIP(old) {
		had = len(old.Spec.IPFamilies)
		if isHeadless(old) || unchangedPreference(s, old) {
			return nil
		}
		if had == 2 && len(s.Spec.IPFamilies) == 1 && len(old.Spec.ClusterIPs) == 2 {
			if a, err := netip.ParseAddr(old.Spec.ClusterIPs[1]); err == nil {
				c.droppedAddress = append(c.droppedAddress, a)
			}
		}
	}
	if isHeadless(s) {
		return nil
	}
	for i := had; i < len(s.Spec.IPFamilies); i++ {
		if i >= len(s.Spec.ClusterIPs) {
			s.Spec.ClusterIPs = append(slices.Clip(s.Spec.ClusterIPs), "")
		}
		if err := c.clusterIP(ctx, s, i); err != nil {
			return err
		}
	}
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	return nil
}

// clusterIP takes the Service's address number i. The messages are upstream's.
func (c *claim) clusterIP(ctx context.Context, s *core.Service, i int) error {
	asked := s.Spec.ClusterIPs[i]
	ip, err := c.takeAddress(ctx, s.Spec.IPFamilies[i], asked)
	what := "failed to allocate IP"
	if asked != "" {
		what += " " + asked
	}
	switch {
	case errors.Is(err, errFull):
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", s.Name, err))
	case err != nil:
		return invalidService(s, field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs, fmt.Sprintf("%s: %v", what, err)))
	}
	s.Spec.ClusterIPs[i] = ip
	return nil
}

func isHeadless(s *core.Service) bool {
	return len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == core.ClusterIPNone
}

// nodePorts takes a node port for each port that needs one; ports that differ
// only in protocol share it.
func (c *claim) nodePorts(s, old *core.Service) error {
	var had []int
	if old != nil {
		had = nodePortsOf(old)
	}
	if hasNodePorts(s) {
		wanted := map[int32]int32{} // port → node port
		for _, port := range s.Spec.Ports {
			if port.NodePort != 0 && wanted[port.Port] == 0 {
				wanted[port.Port] = port.NodePort
			}
		}
		for i := range s.Spec.Ports {
			if err := c.nodePort(s, i, wanted, had); err != nil {
				return err
			}
		}
	}
	for _, number := range had {
		if !slices.Contains(nodePortsOf(s), number) {
			c.droppedNodePort = append(c.droppedNodePort, number)
		}
	}
	return nil
}

func (c *claim) nodePort(s *core.Service, i int, wanted map[int32]int32, had []int) error {
	port := &s.Spec.Ports[i]
	allocates := s.Spec.Type == core.ServiceTypeNodePort || ptr.Deref(s.Spec.AllocateLoadBalancerNodePorts, true)
	if port.NodePort == 0 && !allocates {
		return nil
	}
	if port.NodePort == 0 {
		port.NodePort = wanted[port.Port]
	}
	if port.NodePort != 0 && (slices.Contains(had, int(port.NodePort)) || slices.Contains(c.ports, int(port.NodePort))) {
		return nil
	}
	number, err := c.takePort(int(port.NodePort))
	switch {
	case errors.Is(err, errFull):
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
	case err != nil:
		return invalidService(s, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port.NodePort, err.Error()))
	}
	port.NodePort = int32(number)
	wanted[port.Port] = port.NodePort
	return nil
}

// healthPort takes the port at which a load balancer asks for local endpoints.
func (c *claim) healthPort(s, old *core.Service) error {
	had := old != nil && serviceapi.NeedsHealthCheck(old)
	if !serviceapi.NeedsHealthCheck(s) || had {
		return nil
	}
	asked := int(s.Spec.HealthCheckNodePort)
	number, err := c.takePort(asked)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", asked, err))
	}
	s.Spec.HealthCheckNodePort = int32(number)
	return nil
}

func invalidService(s *core.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(core.Kind("Service"), s.Name, errs)
}

// keepAllocated puts back what was allocated for a Service and an update leaves
// out, so that one who applies the same text again changes nothing.
func keepAllocated(s, old *core.Service) {
	if hasClusterIP(s) && hasClusterIP(old) {
		if s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if hasNodePorts(s) && hasNodePorts(old) {
		byName := map[string]int32{}
		for _, port := range old.Spec.Ports {
			byName[port.Name] = port.NodePort
		}
		for i := range s.Spec.Ports {
			port := &s.Spec.Ports[i]
			before := byName[port.Name]
			inUse := slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.NodePort == before })
			if port.NodePort == 0 && !inUse {
				port.NodePort = before
			}
		}
	}
	if hasHealthPort(s) && hasHealthPort(old) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// syncClusterIPs makes clusterIPs follow clusterIP where a client changed only
// the field that it knows.
func syncClusterIPs(s, old *core.Service) {
	same := slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs)
	switch {
	case s.Spec.ClusterIP == old.Spec.ClusterIP:
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = old.Spec.ClusterIPs
		}
	case same && s.Spec.ClusterIP == "":
		s.Spec.ClusterIPs = nil
	case same:
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

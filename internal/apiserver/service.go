package apiserver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"
	serviceapi "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/utils/ptr"
)

// The cluster's Services have IPv4 addresses. Whatever a Service says about two
// families is answered as a single-stack cluster of upstream's would.

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
		c := &claim{book: h.book, holder: s.UID}
		c.dropAll(s)
		c.settle(true)
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
	if err := h.book.load(ctx, h.services); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	c := &claim{book: h.book, holder: s.UID, dryRun: dryRun}
	if err := defaultFamilies(s, old); err != nil {
		return nil, err
	}
	err := c.clusterIP(s, old)
	if err == nil {
		err = c.nodePorts(s, old)
	}
	if err == nil {
		err = c.healthPort(s, old)
	}
	if err != nil {
		c.settle(false)
		return nil, err
	}
	return func(_ context.Context, success bool) { c.settle(success) }, nil
}

// clusterIP takes an address unless there is one already, or the Service is
// headless or a name only.
func (c *claim) clusterIP(s, old *core.Service) error {
	if old != nil && hasClusterIP(old) {
		if !hasClusterIP(s) {
			c.droppedAddress = c.book.addressesOf(old)
		}
		return nil // validation refuses a change
	}
	if !hasClusterIP(s) || len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == core.ClusterIPNone {
		return nil
	}
	asked := ""
	if len(s.Spec.ClusterIPs) > 0 {
		asked = s.Spec.ClusterIPs[0]
	}
	ip, err := c.takeAddress(asked, s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes")
	switch {
	case errors.Is(err, errFull):
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", s.Name, err))
	case err != nil:
		return invalidService(s, field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs,
			fmt.Sprintf("failed to allocate IP %v: %v", asked, err)))
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = ip, []string{ip}
	return nil
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

// defaultFamilies fills in ipFamilyPolicy and ipFamilies, and refuses what needs
// a second family.
func defaultFamilies(s, old *core.Service) error {
	if !hasClusterIP(s) || old != nil && unchangedPreference(s, old) {
		return nil
	}
	headlessOpen := s.Spec.ClusterIP == core.ClusterIPNone && len(s.Spec.Selector) == 0
	if s.Spec.IPFamilyPolicy == nil {
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
		case headlessOpen: // nobody knows what its endpoints will be
			s.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicyRequireDualStack)
		default:
			s.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicySingleStack)
		}
	}
	if errs := validation.ValidateServiceClusterIPsRelatedFields(s, old); len(errs) != 0 {
		return invalidService(s, errs...)
	}
	if errs := checkFamilyPolicy(s, old); len(errs) != 0 {
		return invalidService(s, errs...)
	}
	if headlessOpen {
		defaultOpenFamilies(s)
		return nil
	}
	if errs := checkFamilies(s); len(errs) != 0 {
		return invalidService(s, errs...)
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []core.IPFamily{core.IPv4Protocol}
	}
	return nil
}

// unchangedPreference says whether both prefer two families and nothing about
// them changed: then a Service is neither upgraded nor downgraded.
func unchangedPreference(s, old *core.Service) bool {
	prefers := func(s *core.Service) bool {
		return ptr.Deref(s.Spec.IPFamilyPolicy, core.IPFamilyPolicyPreferDualStack) == core.IPFamilyPolicyPreferDualStack
	}
	return s.Spec.IPFamilyPolicy != nil && s.Spec.Type == old.Spec.Type && prefers(s) && prefers(old) &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && reflect.DeepEqual(s.Spec.IPFamilies, old.Spec.IPFamilies)
}

func checkFamilyPolicy(s, old *core.Service) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "ipFamilyPolicy")
	single := *s.Spec.IPFamilyPolicy == core.IPFamilyPolicySingleStack
	if old != nil && single {
		if slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && len(s.Spec.ClusterIPs) > 1 {
			s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
		}
		if slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) && len(s.Spec.IPFamilies) > 1 {
			s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
		}
	}
	if old != nil && !single && len(s.Spec.IPFamilies) > 0 && len(s.Spec.IPFamilies) < len(old.Spec.IPFamilies) {
		errs = append(errs, field.Invalid(path, s.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	if single && len(s.Spec.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(path, s.Spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	}
	if single && len(s.Spec.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(path, s.Spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	return errs
}

// defaultOpenFamilies is for a headless Service without a selector, which may
// name families that the cluster does not have.
func defaultOpenFamilies(s *core.Service) {
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []core.IPFamily{core.IPv4Protocol}
	}
	if len(s.Spec.IPFamilies) == 1 && *s.Spec.IPFamilyPolicy != core.IPFamilyPolicySingleStack {
		other := core.IPv6Protocol
		if s.Spec.IPFamilies[0] == core.IPv6Protocol {
			other = core.IPv4Protocol
		}
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, other)
	}
}

func checkFamilies(s *core.Service) field.ErrorList {
	var errs field.ErrorList
	if *s.Spec.IPFamilyPolicy == core.IPFamilyPolicyRequireDualStack {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), s.Spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range s.Spec.IPFamilies {
		if family != core.IPv4Protocol {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	return errs
}

package apiserver

import (
	"context"
	"reflect"
	"slices"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	serviceapi "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

var serviceRules = rules{
	resets:         []string{"status"},
	createOnUpdate: true,
	prepareCreate:  onObject(func(s *core.Service) { s.Status = core.ServiceStatus{} }),
	prepareUpdate: onChange(func(s, old *core.Service) {
		s.Status = old.Status
		dropServiceFields(s, old)
	}),
	validate:       checkObject(validation.ValidateServiceCreate),
	validateUpdate: checkChange(validation.ValidateServiceUpdate),
	warnCreate:     warnObject(func(_ context.Context, s *core.Service) []string { return serviceapi.GetWarningsForService(s, nil) }),
	warnUpdate: warnChange(func(_ context.Context, s, old *core.Service) []string {
		return serviceapi.GetWarningsForService(s, old)
	}),
}

var serviceStatusRules = rules{
	resets:         []string{"spec"},
	prepareUpdate:  onChange(func(s, old *core.Service) { s.Spec = old.Spec }),
	validateUpdate: checkChange(validation.ValidateServiceStatusUpdate),
	warnUpdate: warnChange(func(_ context.Context, s, _ *core.Service) []string {
		var warnings []string
		for i, ingress := range s.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				warnings = append(warnings, utilvalidation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), ingress.IP)...)
			}
		}
		return warnings
	}),
}

// dropServiceFields clears what an update no longer needs because it changed the
// type, as long as it did not change these fields too: a client that flips the
// type need not know what came with the old one.
func dropServiceFields(s, old *core.Service) {
	if hasClusterIP(old) && !hasClusterIP(s) {
		dropAddressFields(s, old)
	}
	if hasNodePorts(old) && !hasNodePorts(s) && keepsNodePorts(s, old) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	if hasHealthPort(old) && !hasHealthPort(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if serviceapi.ExternallyAccessible(old) && !serviceapi.ExternallyAccessible(s) && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
	if s.Spec.Type != core.ServiceTypeLoadBalancer {
		dropBalancerFields(s, old)
	}
}

func dropAddressFields(s, old *core.Service) {
	if s.Spec.ClusterIP == old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
	}
	if slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
		s.Spec.IPFamilies = nil
	}
	if reflect.DeepEqual(s.Spec.IPFamilyPolicy, old.Spec.IPFamilyPolicy) {
		s.Spec.IPFamilyPolicy = nil
	}
}

func dropBalancerFields(s, old *core.Service) {
	s.Status.LoadBalancer = core.LoadBalancerStatus{}
	if old.Spec.Type != core.ServiceTypeLoadBalancer {
		return
	}
	if reflect.DeepEqual(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
		s.Spec.AllocateLoadBalancerNodePorts = nil
	}
	if reflect.DeepEqual(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		s.Spec.LoadBalancerClass = nil
	}
}

func hasClusterIP(s *core.Service) bool { return s.Spec.Type != core.ServiceTypeExternalName }

func hasNodePorts(s *core.Service) bool {
	return s.Spec.Type == core.ServiceTypeNodePort || s.Spec.Type == core.ServiceTypeLoadBalancer
}

func hasHealthPort(s *core.Service) bool {
	return s.Spec.Type == core.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal
}

// keepsNodePorts says whether every node port of s was already one of old's.
func keepsNodePorts(s, old *core.Service) bool {
	for _, port := range s.Spec.Ports {
		if port.NodePort != 0 && !slices.ContainsFunc(old.Spec.Ports, func(p core.ServicePort) bool { return p.NodePort == port.NodePort }) {
			return false
		}
	}
	return true
}

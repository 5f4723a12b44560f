package apiserver

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/utils/ptr"
)

// The rules of this file, their order and their messages are those of upstream's
// pkg/registry/core/service/storage/alloc.go.

// defaultFamilies fills in ipFamilyPolicy and ipFamilies, and refuses what the cluster's
// families do not allow.
func (b *addressBook) defaultFamilies(s, old *core.Service) error {
	if !hasClusterIP(s) || old != nil && unchangedPreference(s, old) {
		return nil
	}
	headlessOpen := s.Spec.ClusterIP == core.ClusterIPNone && len(s.Spec.Selector) == 0
	if s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = defaultPolicy(old, headlessOpen)
	}
	if errs := validation.ValidateServiceClusterIPsRelatedFields(s, old); len(errs) != 0 {
		return invalidService(s, errs...)
	}
	if errs := append(checkFamilyPolicy(s, old), b.inferFamilies(s)...); len(errs) != 0 {
		return invalidService(s, errs...)
	}
	if headlessOpen { // it may name families that the cluster does not have
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = []core.IPFamily{b.families[0]}
		}
		addOtherFamily(s)
		return nil
	}
	if errs := b.checkFamilies(s); len(errs) != 0 {
		return invalidService(s, errs...)
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []core.IPFamily{b.families[0]}
	}
	if len(b.families) == 2 {
		addOtherFamily(s)
	}
	return nil
}

// defaultPolicy is the policy of before, and otherwise a single family: but for a headless
// Service without a selector, of which nobody knows what its endpoints will be.
func defaultPolicy(old *core.Service, headlessOpen bool) *core.IPFamilyPolicy {
	switch {
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		return old.Spec.IPFamilyPolicy
	case headlessOpen:
		return ptr.To(core.IPFamilyPolicyRequireDualStack)
	default:
		return ptr.To(core.IPFamilyPolicySingleStack)
	}
}

// addOtherFamily adds the second family unless the Service wants only one.
func addOtherFamily(s *core.Service) {
	if len(s.Spec.IPFamilies) != 1 || *s.Spec.IPFamilyPolicy == core.IPFamilyPolicySingleStack {
		return
	}
	other := core.IPv6Protocol
	if s.Spec.IPFamilies[0] == core.IPv6Protocol {
		other = core.IPv4Protocol
	}
	s.Spec.IPFamilies = append(slices.Clip(s.Spec.IPFamilies), other)
}

// unchangedPreference says whether both prefer two families and nothing about
// them changed: then a Service is neither upgraded nor downgraded.
func unchangedPreference(s, old *core.Service) bool {
	prefers := func(s *core.Service) bool {
		return ptr.Deref(s.Spec.IPFamilyPolicy, core.IPFamilyPolicyPreferDualStack) == core.IPFamilyPolicyPreferDualStack
	}
	return s.Spec.IPFamilyPolicy != nil && s.Spec.Type == old.Spec.Type && prefers(s) && prefers(old) &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
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
	if old != nil && !single {
		if len(s.Spec.ClusterIPs) > 0 && len(s.Spec.ClusterIPs) < len(old.Spec.ClusterIPs) {
			errs = append(errs, field.Invalid(path, s.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
		}
		if len(s.Spec.IPFamilies) > 0 && len(s.Spec.IPFamilies) < len(old.Spec.IPFamilies) {
			errs = append(errs, field.Invalid(path, s.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
		}
	}
	if single && len(s.Spec.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(path, s.Spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	}
	if single && len(s.Spec.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(path, s.Spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	return errs
}

// inferFamilies adds the families of addresses that were asked for.
func (b *addressBook) inferFamilies(s *core.Service) field.ErrorList {
	var errs field.ErrorList
	for i := len(s.Spec.IPFamilies); i < len(s.Spec.ClusterIPs) && !isHeadless(s); i++ {
		a, err := netip.ParseAddr(s.Spec.ClusterIPs[i])
		if err != nil {
			continue // validation has said so
		}
		family := familyOf(a.Unmap())
		if !slices.Contains(b.families, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), s.Spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
			continue
		}
		s.Spec.IPFamilies = append(slices.Clip(s.Spec.IPFamilies), family)
	}
	return errs
}

func (b *addressBook) checkFamilies(s *core.Service) field.ErrorList {
	var errs field.ErrorList
	if *s.Spec.IPFamilyPolicy == core.IPFamilyPolicyRequireDualStack && len(b.families) < 2 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), s.Spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range s.Spec.IPFamilies {
		if !slices.Contains(b.families, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	return errs
}

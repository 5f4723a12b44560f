package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
)

var serviceCIDRRules = rules{
	resets:         []string{"status"},
	prepareCreate:  onObject(func(c *networking.ServiceCIDR) { c.Status = networking.ServiceCIDRStatus{} }),
	prepareUpdate:  onChange(func(c, old *networking.ServiceCIDR) { c.Status = old.Status }),
	validate:       checkObject(networkingvalidation.ValidateServiceCIDR),
	validateUpdate: checkChange(networkingvalidation.ValidateServiceCIDRUpdate),
}

var serviceCIDRStatusRules = rules{
	resets: []string{"metadata", "spec"},
	prepareUpdate: onChange(func(c, old *networking.ServiceCIDR) {
		c.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
	}),
	validateUpdate: checkChange(networkingvalidation.ValidateServiceCIDRStatusUpdate),
}

var ipAddressRules = rules{
	validate: checkObject(networkingvalidation.ValidateIPAddress),
	validateUpdate: checkChange(func(a, old *networking.IPAddress) field.ErrorList {
		return append(networkingvalidation.ValidateIPAddress(a), networkingvalidation.ValidateIPAddressUpdate(a, old)...)
	}),
}

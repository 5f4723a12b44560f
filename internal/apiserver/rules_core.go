package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/apis/coordination"
	coordinationvalidation "k8s.io/kubernetes/pkg/apis/coordination/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"
	"k8s.io/kubernetes/pkg/features"
)

var namespaceRules = rules{
	resets: []string{"status"},
	prepareCreate: onObject(func(n *core.Namespace) {
		n.Status = core.NamespaceStatus{Phase: core.NamespaceActive}
		if !slices.Contains(n.Spec.Finalizers, core.FinalizerKubernetes) {
			n.Spec.Finalizers = append(n.Spec.Finalizers, core.FinalizerKubernetes)
		}
	}),
	prepareUpdate: onChange(func(n, old *core.Namespace) {
		n.Spec.Finalizers, n.Status = old.Spec.Finalizers, old.Status
	}),
	validate: checkObject(validation.ValidateNamespace),
	validateUpdate: checkChange(func(n, old *core.Namespace) field.ErrorList {
		return append(validation.ValidateNamespace(n), validation.ValidateNamespaceUpdate(n, old)...)
	}),
	canonicalize: labelNamespace,
}

var namespaceStatusRules = rules{
	resets:         []string{"spec"},
	prepareUpdate:  onChange(func(n, old *core.Namespace) { n.Spec = old.Spec }),
	validateUpdate: checkChange(validation.ValidateNamespaceStatusUpdate),
	canonicalize:   labelNamespace,
}

var namespaceFinalizeRules = rules{
	resets:         []string{"status"},
	prepareUpdate:  onChange(func(n, old *core.Namespace) { n.Status = old.Status }),
	validateUpdate: checkChange(validation.ValidateNamespaceFinalizeUpdate),
	canonicalize:   labelNamespace,
}

func labelNamespace(obj runtime.Object) {
	n := obj.(*core.Namespace)
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

var nodeRules = rules{
	resets:        []string{"status"},
	prepareCreate: onObject(func(n *core.Node) { n.Spec.ConfigSource, n.Status.Config = nil, nil; dropNodeFields(n, nil) }),
	prepareUpdate: onChange(func(n, old *core.Node) {
		n.Status = old.Status
		if old.Spec.ConfigSource == nil {
			n.Spec.ConfigSource = nil
		}
		dropNodeFields(n, old)
	}),
	validate: checkObject(validation.ValidateNode),
	validateUpdate: checkChange(func(n, old *core.Node) field.ErrorList {
		return append(validation.ValidateNode(n), validation.ValidateNodeUpdate(n, old)...)
	}),
	warnCreate:  warnObject(func(_ context.Context, n *core.Node) []string { return nodeWarnings(n) }),
	warnUpdate:  warnChange(func(_ context.Context, n, _ *core.Node) []string { return nodeWarnings(n) }),
	declarative: nodeOptions,
}

var nodeStatusRules = rules{
	resets: []string{"spec"},
	prepareUpdate: onChange(func(n, old *core.Node) {
		n.Spec = old.Spec
		if old.Status.Config == nil {
			n.Status.Config = nil
		}
	}),
	validateUpdate: checkChange(validation.ValidateNodeUpdate),
	declarative:    nodeOptions,
}

func nodeOptions() map[string]bool {
	gate := features.InPlacePodVerticalScalingSchedulerPreemption
	return map[string]bool{string(gate): enabled(gate)}
}

// dropNodeFields clears what belongs to a disabled feature and was not there.
func dropNodeFields(n, old *core.Node) {
	if !enabled(features.RecursiveReadOnlyMounts) && !enabled(features.UserNamespacesSupport) {
		n.Status.RuntimeHandlers = nil
	}
	if !enabled(features.SupplementalGroupsPolicy) && (old == nil || old.Status.Features == nil) {
		n.Status.Features = nil
	}
	if !enabled(features.NodeDeclaredFeatures) && (old == nil || old.Status.DeclaredFeatures == nil) {
		n.Status.DeclaredFeatures = nil
	}
	if !enabled(features.InPlacePodVerticalScalingSchedulerPreemption) && (old == nil || old.Spec.PodPreemptionPolicy == nil) {
		n.Spec.PodPreemptionPolicy = nil
	}
}

func nodeWarnings(n *core.Node) []string {
	var warnings []string
	if n.Spec.ConfigSource != nil {
		warnings = append(warnings, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		warnings = append(warnings, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		warnings = append(warnings, utilvalidation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return warnings
}

var configMapRules = rules{
	validate:       checkObject(validation.ValidateConfigMap),
	validateUpdate: checkChange(validation.ValidateConfigMapUpdate),
}

var secretRules = rules{
	// A client that predates the field "type" must not clear it.
	prepareUpdate: onChange(func(s, old *core.Secret) {
		if s.Type == "" {
			s.Type = old.Type
		}
	}),
	validate:       checkObject(validation.ValidateSecret),
	validateUpdate: checkChange(validation.ValidateSecretUpdate),
	warnCreate:     warnObject(func(_ context.Context, s *core.Secret) []string { return secretWarnings(s) }),
	warnUpdate:     warnChange(func(_ context.Context, s, _ *core.Secret) []string { return secretWarnings(s) }),
}

func secretWarnings(s *core.Secret) []string {
	if s.Type != core.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(s.Data[core.TLSCertKey], s.Data[core.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}

const mountableSecretsAnnotation = "kubernetes.io/enforce-mountable-secrets"

var serviceAccountRules = rules{
	prepareCreate:  onObject(cleanSecretReferences),
	prepareUpdate:  onChange(func(s, _ *core.ServiceAccount) { cleanSecretReferences(s) }),
	validate:       checkObject(validation.ValidateServiceAccount),
	validateUpdate: checkChange(validation.ValidateServiceAccountUpdate),
	warnCreate:     warnObject(func(_ context.Context, s *core.ServiceAccount) []string { return serviceAccountWarnings(s, nil) }),
	warnUpdate:     warnChange(func(_ context.Context, s, old *core.ServiceAccount) []string { return serviceAccountWarnings(s, old) }),
}

func cleanSecretReferences(s *core.ServiceAccount) {
	for i, secret := range s.Secrets {
		s.Secrets[i] = core.ObjectReference{Name: secret.Name}
	}
}

func serviceAccountWarnings(s, old *core.ServiceAccount) []string {
	if old != nil {
		if _, had := old.Annotations[mountableSecretsAnnotation]; had {
			return nil
		}
	}
	if _, has := s.Annotations[mountableSecretsAnnotation]; !has {
		return nil
	}
	return []string{fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets", mountableSecretsAnnotation)}
}

// Events are validated by the rules of the group they come in through.
var eventRules = rules{
	createOnUpdate: true,
	unsupportedGC:  true,
	validate: func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validation.ValidateEventCreate(obj.(*core.Event), requestGroupVersion(ctx))
	},
	validateUpdate: func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
		return validation.ValidateEventUpdate(obj.(*core.Event), old.(*core.Event), requestGroupVersion(ctx))
	},
}

func eventFields(e *core.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            e.InvolvedObject.Kind,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.name":            e.InvolvedObject.Name,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}

func requestGroupVersion(ctx context.Context) schema.GroupVersion {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok {
		return schema.GroupVersion{}
	}
	return schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
}

var leaseRules = rules{
	createOnUpdate: true,
	needsVersion:   true,
	prepareCreate:  onObject(func(l *coordination.Lease) { dropLeaseFields(l, nil) }),
	prepareUpdate:  onChange(dropLeaseFields),
	validate:       checkObject(coordinationvalidation.ValidateLease),
	validateUpdate: checkChange(coordinationvalidation.ValidateLeaseUpdate),
}

func dropLeaseFields(l, old *coordination.Lease) {
	if enabled(features.CoordinatedLeaderElection) {
		return
	}
	if old == nil || old.Spec.Strategy == nil {
		l.Spec.Strategy = nil
	}
	if old == nil || old.Spec.PreferredHolder == nil {
		l.Spec.PreferredHolder = nil
	}
}

// Labels of objects that controllers write themselves: their addresses need no
// advice.
const (
	endpointsManagedBy  = "endpoints.kubernetes.io/managed-by"
	endpointsController = "endpoint-controller"
	sliceManagedBy      = "endpointslice.kubernetes.io/managed-by"
)

var sliceControllers = []string{"endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"}

var endpointsRules = rules{
	createOnUpdate: true,
	validate:       checkObject(validation.ValidateEndpointsCreate),
	validateUpdate: checkChange(validation.ValidateEndpointsUpdate),
	warnCreate:     warnObject(func(_ context.Context, e *core.Endpoints) []string { return endpointsWarnings(e) }),
	warnUpdate:     warnChange(func(_ context.Context, e, _ *core.Endpoints) []string { return endpointsWarnings(e) }),
}

func endpointsWarnings(e *core.Endpoints) []string {
	if e.Labels[endpointsManagedBy] == endpointsController {
		return nil
	}
	var warnings []string
	for i, subset := range e.Subsets {
		path := field.NewPath("subsets").Index(i)
		for j, address := range subset.Addresses {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(path.Child("addresses").Index(j).Child("ip"), address.IP)...)
		}
		for j, address := range subset.NotReadyAddresses {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(path.Child("notReadyAddresses").Index(j).Child("ip"), address.IP)...)
		}
	}
	return warnings
}

var endpointSliceRules = rules{
	prepareCreate: onObject(func(e *discovery.EndpointSlice) {
		e.Generation = 1
		dropSliceFields(e, nil)
	}),
	prepareUpdate: onChange(func(e, old *discovery.EndpointSlice) {
		if sliceChanged(e, old) {
			e.Generation = old.Generation + 1
		}
		dropSliceFields(e, old)
	}),
	validate:       checkObject(discoveryvalidation.ValidateEndpointSliceCreate),
	validateUpdate: checkChange(discoveryvalidation.ValidateEndpointSliceUpdate),
	warnCreate: warnObject(func(_ context.Context, e *discovery.EndpointSlice) []string {
		if e.AddressType == discovery.AddressTypeFQDN {
			return append([]string{"spec.addressType: FQDN endpoints are deprecated"}, sliceWarnings(e)...)
		}
		return sliceWarnings(e)
	}),
	warnUpdate: warnChange(func(_ context.Context, e, _ *discovery.EndpointSlice) []string { return sliceWarnings(e) }),
}

// sliceChanged says whether anything but the metadata, or the labels, differ.
func sliceChanged(e, old *discovery.EndpointSlice) bool {
	a, b := *e, *old
	a.ObjectMeta, b.ObjectMeta = metav1.ObjectMeta{}, metav1.ObjectMeta{}
	return !apiequality.Semantic.DeepEqual(a, b) || !apiequality.Semantic.DeepEqual(e.Labels, old.Labels)
}

// dropSliceFields clears the topology that only v1beta1, which is not served,
// could set, and hints of a disabled feature.
func dropSliceFields(e, old *discovery.EndpointSlice) {
	hints := enabled(features.PreferSameTrafficDistribution)
	if old != nil {
		for _, endpoint := range old.Endpoints {
			hints = hints || endpoint.Hints != nil && endpoint.Hints.ForNodes != nil
		}
	}
	for i := range e.Endpoints {
		if !hints && e.Endpoints[i].Hints != nil {
			e.Endpoints[i].Hints.ForNodes = nil
		}
		if old == nil || !apiequality.Semantic.DeepEqual(old.Endpoints, e.Endpoints) {
			e.Endpoints[i].DeprecatedTopology = nil
		}
	}
}

func sliceWarnings(e *discovery.EndpointSlice) []string {
	if slices.Contains(sliceControllers, e.Labels[sliceManagedBy]) {
		return nil
	}
	var warnings []string
	for i, endpoint := range e.Endpoints {
		for j, address := range endpoint.Addresses {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), address)...)
		}
	}
	return warnings
}

func enabled(feature featuregate.Feature) bool {
	return utilfeature.DefaultFeatureGate.Enabled(feature)
}

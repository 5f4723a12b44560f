package apiserver

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper/qos"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
)

var podRules = rules{
	resets:        []string{"status"},
	prepareCreate: onObject(preparePod),
	prepareUpdate: onChange(func(p, old *core.Pod) {
		p.Status = old.Status
		keepAdmitted(p, old)
		keepPodResources(p, old)
		pod.DropDisabledPodFields(p, old)
		bumpPodGeneration(p, old)
	}),
	validate: checkObject(func(p *core.Pod) field.ErrorList {
		options := pod.GetValidationOptionsFromPodSpecAndMeta(&p.Spec, nil, &p.ObjectMeta, nil)
		options.ResourceIsPod = true
		return validation.ValidatePodCreate(p, options)
	}),
	validateUpdate: checkChange(func(p, old *core.Pod) field.ErrorList {
		return validation.ValidatePodUpdate(p, old, podOptions(p, old))
	}),
	warnCreate: warnObject(func(ctx context.Context, p *core.Pod) []string {
		var warnings []string
		if problems := utilvalidation.IsDNS1123Label(p.Name); len(problems) != 0 {
			warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", problems))
		}
		return append(warnings, pod.GetWarningsForPod(ctx, p, nil)...)
	}),
	graceful: func(obj runtime.Object, options *metav1.DeleteOptions) bool {
		period := podGracePeriod(obj.(*core.Pod), options.GracePeriodSeconds)
		options.GracePeriodSeconds = &period
		return true
	},
}

var podStatusRules = rules{
	resets:        []string{"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"},
	prepareUpdate: onChange(preparePodStatus),
	validateUpdate: checkChange(func(p, old *core.Pod) field.ErrorList {
		return validation.ValidatePodStatusUpdate(p, old, podOptions(p, old))
	}),
	warnUpdate: warnChange(func(_ context.Context, p, _ *core.Pod) []string {
		var warnings []string
		for i, ip := range p.Status.PodIPs {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(field.NewPath("status", "podIPs").Index(i).Child("ip"), ip.IP)...)
		}
		for i, ip := range p.Status.HostIPs {
			warnings = append(warnings, utilvalidation.GetWarningsForIP(field.NewPath("status", "hostIPs").Index(i).Child("ip"), ip.IP)...)
		}
		return warnings
	}),
	graceful: podRules.graceful,
}

func podOptions(p, old *core.Pod) validation.PodValidationOptions {
	options := pod.GetValidationOptionsFromPodSpecAndMeta(&p.Spec, &old.Spec, &p.ObjectMeta, &old.ObjectMeta)
	options.ResourceIsPod = true
	return options
}

// preparePod gives a new Pod its first status.
func preparePod(p *core.Pod) {
	p.Generation = 1
	p.Status = core.PodStatus{Phase: core.PodPending}
	pod.DropDisabledPodFields(p, nil)
	if len(p.Spec.SchedulingGates) > 0 {
		pod.UpdatePodCondition(&p.Status, &core.PodCondition{
			Type: core.PodScheduled, Status: core.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		})
	}
	mergeAffinityLabelKeys(p)
	mergeSpreadLabelKeys(p)
	pod.DefaultPodLevelResources(p)
	p.Status.QOSClass = qos.GetPodQOS(p)
}

// preparePodStatus lets a status update touch the status and nothing that is not
// the kubelet's to change.
func preparePodStatus(p, old *core.Pod) {
	p.Spec, p.OwnerReferences, p.DeletionTimestamp = old.Spec, old.OwnerReferences, nil
	// What follows is kept when a client that does not know it leaves it out.
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
	if p.Status.ResourceClaimStatuses == nil {
		p.Status.ResourceClaimStatuses = old.Status.ResourceClaimStatuses
	}
	if p.Status.ExtendedResourceClaimStatus == nil {
		p.Status.ExtendedResourceClaimStatus = old.Status.ExtendedResourceClaimStatus
	}
	if p.Status.NodeAllocatableResourceClaimStatuses == nil {
		p.Status.NodeAllocatableResourceClaimStatuses = old.Status.NodeAllocatableResourceClaimStatuses
	}
	keepObservedGenerations(&p.Status, &old.Status)
	pod.DropDisabledPodFields(p, old)
}

// keepObservedGenerations restores observedGeneration where an update would clear
// it. Conditions of one type are matched in order: a type may occur twice.
func keepObservedGenerations(status, old *core.PodStatus) {
	if status.ObservedGeneration == 0 {
		status.ObservedGeneration = old.ObservedGeneration
	}
	known := map[core.PodConditionType][]int64{}
	for _, c := range old.Conditions {
		known[c.Type] = append(known[c.Type], c.ObservedGeneration)
	}
	for i := range status.Conditions {
		c := &status.Conditions[i]
		before := int64(0)
		if generations := known[c.Type]; len(generations) > 0 {
			before, known[c.Type] = generations[0], generations[1:]
		}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = before
		}
	}
}

// keepPodResources keeps resources of the whole Pod that a client which does not
// know them dropped.
func keepPodResources(p, old *core.Pod) {
	if enabled(features.PodLevelResourcesFixDefaulting) && p.Spec.Resources == nil && old.Spec.Resources != nil {
		p.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}

func bumpPodGeneration(p, old *core.Pod) {
	if !apiequality.Semantic.DeepEqual(p.Spec, old.Spec) {
		p.Generation++
	}
}

// podGracePeriod is how many seconds a Pod gets when its deletion asks for
// asked: what is asked, else what the Pod says, and none if nothing runs that
// would use them.
func podGracePeriod(p *core.Pod, asked *int64) int64 {
	period := int64(0)
	switch {
	case asked != nil:
		period = *asked
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.Spec.NodeName == "" || p.Status.Phase == core.PodFailed || p.Status.Phase == core.PodSucceeded {
		return 0
	}
	if period < 0 {
		return 1
	}
	return period
}

// mergeAffinityLabelKeys turns matchLabelKeys and mismatchLabelKeys of (anti-)
// affinity terms into requirements on the values that this Pod has.
func mergeAffinityLabelKeys(p *core.Pod) {
	if p.Spec.Affinity == nil || !enabled(features.MatchLabelKeysInPodAffinity) {
		return
	}
	merge := func(term *core.PodAffinityTerm) {
		if term.LabelSelector == nil {
			return // matches nothing, with or without keys
		}
		requireOwnLabels(term.LabelSelector, term.MatchLabelKeys, metav1.LabelSelectorOpIn, p.Labels)
		requireOwnLabels(term.LabelSelector, term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, p.Labels)
	}
	if a := p.Spec.Affinity.PodAffinity; a != nil {
		eachTerm(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, merge)
	}
	if a := p.Spec.Affinity.PodAntiAffinity; a != nil {
		eachTerm(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, merge)
	}
}

func eachTerm(required []core.PodAffinityTerm, preferred []core.WeightedPodAffinityTerm, f func(*core.PodAffinityTerm)) {
	for i := range preferred {
		f(&preferred[i].PodAffinityTerm)
	}
	for i := range required {
		f(&required[i])
	}
}

func mergeSpreadLabelKeys(p *core.Pod) {
	if !enabled(features.MatchLabelKeysInPodTopologySpread) || !enabled(features.MatchLabelKeysInPodTopologySpreadSelectorMerge) {
		return
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		if c.LabelSelector != nil {
			requireOwnLabels(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn, p.Labels)
		}
	}
}

func requireOwnLabels(selector *metav1.LabelSelector, keys []string, operator metav1.LabelSelectorOperator, own map[string]string) {
	for _, key := range keys {
		if value, ok := own[key]; ok {
			selector.MatchExpressions = append(selector.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}})
		}
	}
}

func podFields(p *core.Pod) fields.Set {
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

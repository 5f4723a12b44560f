package scheduler

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Demand is what a Pod asks of a node, worked out once per plan instead of once
// per node.
type Demand struct {
	amounts
	ports       []hostPort
	tolerations []v1.Toleration
	// tolerateSoft are the tolerations that count against PreferNoSchedule.
	tolerateSoft []v1.Toleration
	nodeName     string
	required     *nodeaffinity.RequiredNodeAffinity // nil: any node
	preferred    *nodeaffinity.PreferredSchedulingTerms
	// only names the nodes that the required affinity picks by name; nil when
	// it does not. Empty when its terms contradict each other.
	only         sets.Set[string]
	controller   types.UID
	neverPreempt bool

	pod *v1.Pod
}

// DemandOf works out what pod asks for. It keeps pod and does not change it.
func DemandOf(pod *v1.Pod) *Demand {
	d := &Demand{
		amounts:      amountsOf(pod, false),
		ports:        hostPortsOf(pod),
		tolerations:  pod.Spec.Tolerations,
		nodeName:     pod.Spec.NodeName,
		controller:   controllerOf(pod),
		neverPreempt: pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever,
		pod:          pod,
	}
	for _, t := range pod.Spec.Tolerations {
		if t.Effect == "" || t.Effect == v1.TaintEffectPreferNoSchedule {
			d.tolerateSoft = append(d.tolerateSoft, t)
		}
	}
	terms := requiredTerms(pod)
	if len(pod.Spec.NodeSelector) > 0 || terms != nil {
		required := nodeaffinity.GetRequiredNodeAffinity(pod)
		d.required = &required
		d.only = nodesByName(terms)
	}
	if affinity := pod.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil {
		// Validation has refused what cannot be parsed; an old object that
		// slipped through merely has no preference.
		d.preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(
			affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return d
}

func requiredTerms(pod *v1.Pod) []v1.NodeSelectorTerm {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil ||
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// nodesByName is the set of nodes that terms name through metadata.name, or nil
// when one term names none: terms are alternatives, what is inside one of them
// must hold together.
func nodesByName(terms []v1.NodeSelectorTerm) sets.Set[string] {
	var names sets.Set[string]
	for _, term := range terms {
		var inTerm sets.Set[string]
		for _, field := range term.MatchFields {
			if field.Key != metav1.ObjectNameField || field.Operator != v1.NodeSelectorOpIn {
				continue
			}
			if inTerm == nil {
				inTerm = sets.New(field.Values...)
			} else {
				inTerm = inTerm.Intersection(sets.New(field.Values...))
			}
		}
		if inTerm == nil {
			return nil
		}
		names = names.Union(inTerm)
	}
	return names
}

// shape is equal for two Pods exactly when every node that fits one fits the
// other and a refusal reads the same.
func (d *Demand) shape() string {
	type portShape struct {
		Address  string
		Protocol v1.Protocol
		Port     int32
	}
	ports := make([]portShape, 0, len(d.ports))
	for _, p := range d.ports {
		ports = append(ports, portShape{p.address, p.protocol, p.port})
	}
	text, err := json.Marshal(struct {
		Requests     Resources
		Ports        []portShape
		Tolerations  []v1.Toleration
		NodeName     string
		NodeSelector map[string]string
		Terms        []v1.NodeSelectorTerm
		NeverPreempt bool
	}{d.requests, ports, d.tolerations, d.nodeName, d.pod.Spec.NodeSelector, requiredTerms(d.pod), d.neverPreempt})
	if err != nil {
		// Cannot happen: all of it was decoded from an API object. A shape of
		// its own is always right, only slower.
		return "uid:" + string(d.pod.UID)
	}
	return string(text)
}

package scheduler

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// What a container that names no request counts as in scoring (never in
// fitting), so that a node full of Pods without requests does not look empty.
// Upstream's values.
const (
	defaultMilliCPU = 100
	defaultMemory   = 200 << 20 // bytes
)

// Resources is an amount of each resource. CPU is in thousandths of a core, all
// else in the resource's own unit (bytes, pieces).
type Resources struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	// Scalar holds everything else that can be requested: extended resources,
	// huge pages. Nil when there is none.
	Scalar map[v1.ResourceName]int64
}

// resourcesOf converts a list; "pods" is not an amount and is left out.
func resourcesOf(list v1.ResourceList) Resources {
	var r Resources
	for name, quantity := range list {
		switch name {
		case v1.ResourceCPU:
			r.MilliCPU = quantity.MilliValue()
		case v1.ResourceMemory:
			r.Memory = quantity.Value()
		case v1.ResourceEphemeralStorage:
			r.EphemeralStorage = quantity.Value()
		case v1.ResourcePods:
		default:
			if r.Scalar == nil {
				r.Scalar = map[v1.ResourceName]int64{}
			}
			r.Scalar[name] = quantity.Value()
		}
	}
	return r
}

// add adds other times sign (+1 or -1) to r.
func (r *Resources) add(other Resources, sign int64) {
	r.MilliCPU += sign * other.MilliCPU
	r.Memory += sign * other.Memory
	r.EphemeralStorage += sign * other.EphemeralStorage
	for name, amount := range other.Scalar {
		if r.Scalar == nil {
			r.Scalar = map[v1.ResourceName]int64{}
		}
		r.Scalar[name] += sign * amount
		if r.Scalar[name] == 0 {
			delete(r.Scalar, name)
		}
	}
}

func (r Resources) equal(other Resources) bool {
	return r.MilliCPU == other.MilliCPU && r.Memory == other.Memory &&
		r.EphemeralStorage == other.EphemeralStorage && maps.Equal(r.Scalar, other.Scalar)
}

// amounts is what one Pod takes from a node.
type amounts struct {
	requests Resources
	// scoreCPU and scoreMemory are the requests with the defaults above filled
	// in, for scoring only.
	scoreCPU, scoreMemory int64
}

// amountsOf counts as upstream does: containers added up, init containers as a
// floor, sidecars throughout, overhead on top, Pod-level requests in place of
// the containers' where they are set. A Pod that runs counts with the greatest
// of what it asks for, was given, and uses, so that an unfinished resize cannot
// free what is still taken.
func amountsOf(pod *v1.Pod, running bool) amounts {
	opts := resourcehelper.PodResourcesOptions{
		UseStatusResources: running,
		InPlacePodLevelResourcesVerticalScalingEnabled: running,
	}
	requests := resourcehelper.PodRequests(pod, opts)
	opts.NonMissingContainerRequests = missingDefaults(pod, requests)
	forScore := requests
	if len(opts.NonMissingContainerRequests) > 0 {
		forScore = resourcehelper.PodRequests(pod, opts)
	}
	return amounts{
		requests:    resourcesOf(requests),
		scoreCPU:    forScore.Cpu().MilliValue(),
		scoreMemory: forScore.Memory().Value(),
	}
}

// missingDefaults are the defaults to fill in: none for a resource that the Pod
// as a whole asks for.
func missingDefaults(pod *v1.Pod, requests v1.ResourceList) v1.ResourceList {
	podLevel := resourcehelper.IsPodLevelRequestsSet(pod)
	defaults := v1.ResourceList{}
	if _, asked := requests[v1.ResourceCPU]; !podLevel || !asked {
		defaults[v1.ResourceCPU] = *resource.NewMilliQuantity(defaultMilliCPU, resource.DecimalSI)
	}
	if _, asked := requests[v1.ResourceMemory]; !podLevel || !asked {
		defaults[v1.ResourceMemory] = *resource.NewQuantity(defaultMemory, resource.BinarySI)
	}
	return defaults
}

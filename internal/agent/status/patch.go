package status

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Upstream's bound on the termination messages of one Pod together.
const maxMessages = 12 << 10

// Merge is what to write over have, the API's status: ours with the conditions
// that others own as they stand in have.
func Merge(pod *v1.Pod, have, want v1.PodStatus) v1.PodStatus {
	merged := *want.DeepCopy()
	merged.Conditions = foreignConditions(have.Conditions)
	for _, c := range want.Conditions {
		if isOurs(c) {
			merged.Conditions = append(merged.Conditions, c)
		}
	}
	merged.ResourceClaimStatuses = have.ResourceClaimStatuses
	merged.ExtendedResourceClaimStatus = have.ExtendedResourceClaimStatus
	merged.NodeAllocatableResourceClaimStatuses = have.NodeAllocatableResourceClaimStatuses
	merged.NominatedNodeName = have.NominatedNodeName
	cutMessages(pod, &merged)
	return merged
}

func cutMessages(pod *v1.Pod, s *v1.PodStatus) {
	n := len(pod.Spec.Containers) + len(pod.Spec.InitContainers) + len(pod.Spec.EphemeralContainers)
	limit := maxMessages / max(n, 1)
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			for _, state := range []*v1.ContainerState{&list[i].State, &list[i].LastTerminationState} {
				if t := state.Terminated; t != nil && len(t.Message) > limit {
					t.Message = t.Message[:limit]
				}
			}
		}
	}
}

// Equal says whether two statuses tell the same.
func Equal(a, b v1.PodStatus) bool { return equality.Semantic.DeepEqual(a, b) }

// Patch is the strategic merge patch from have to want, which holds the UID as
// its precondition.
func Patch(uid types.UID, have, want v1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(v1.Pod{Status: have})
	if err != nil {
		return nil, fmt.Errorf("encode the status that stands: %w", err)
	}
	after, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: want})
	if err != nil {
		return nil, fmt.Errorf("encode the new status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("difference of two statuses: %w", err)
	}
	return patch, nil
}

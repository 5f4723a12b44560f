package agent

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// inOrder lists resources as upstream checks them: CPU, memory, ephemeral
// storage, then the others by name.
func inOrder(list v1.ResourceList) []v1.ResourceName {
	rank := map[v1.ResourceName]string{v1.ResourceCPU: "0", v1.ResourceMemory: "1", v1.ResourceEphemeralStorage: "2"}
	key := func(n v1.ResourceName) string {
		if r, ok := rank[n]; ok {
			return r
		}
		return "3" + string(n)
	}
	return slices.SortedFunc(maps.Keys(list), func(a, b v1.ResourceName) int { return strings.Compare(key(a), key(b)) })
}

// amount is what messages show: thousandths of a CPU, units of all else.
func amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

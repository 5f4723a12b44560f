package scheduler

import (
	"cmp"
	"math"

	v1 "k8s.io/api/core/v1"
)

// What each score counts in the sum; upstream's default weights.
const (
	maxScore       = 100
	weightTaint    = 3
	weightAffinity = 2
	weightSpread   = 2
	weightLeast    = 1
)

// spreadSkew is how far upstream's default spreading lets hosts differ before
// it weighs in fully.
const spreadSkew = 3

// choose returns the best of the nodes that fit; there is at least one. Equal
// scores are common (100 steps are coarse on a large node), so they are broken
// by fewer siblings, then fewer Pods, then name: the same answer every time, and
// an even one.
func choose(d *Demand, fitting []*nodeState) *nodeState {
	if len(fitting) == 1 {
		return fitting[0]
	}
	total := make([]int64, len(fitting))
	scoreSoftTaints(d, fitting, total)
	scorePreference(d, fitting, total)
	scoreSpread(d, fitting, total)
	for i, n := range fitting {
		total[i] += weightLeast * leastAllocated(d, n)
	}
	best := 0
	for i := range fitting {
		a, b := fitting[i], fitting[best]
		if cmp.Or(cmp.Compare(total[best], total[i]),
			cmp.Compare(a.siblings[d.controller], b.siblings[d.controller]),
			cmp.Compare(a.pods, b.pods), cmp.Compare(a.name, b.name)) < 0 {
			best = i
		}
	}
	return fitting[best]
}

// leastAllocated is the mean over CPU and memory of what would be left free, in
// hundredths: 4 cores with 1 taken and 1 asked for leave 2, which is 50.
// https://kubernetes.io/docs/reference/scheduling/config (NodeResourcesFit, LeastAllocated)
func leastAllocated(d *Demand, n *nodeState) int64 {
	var sum, counted int64
	for _, r := range [2]struct{ used, have int64 }{
		{n.scoreCPU + d.scoreCPU, n.allocatable.MilliCPU},
		{n.scoreMemory + d.scoreMemory, n.allocatable.Memory},
	} {
		if r.have == 0 {
			continue
		}
		counted++
		if r.used <= r.have {
			sum += (r.have - r.used) * maxScore / r.have
		}
	}
	if counted == 0 {
		return 0
	}
	return sum / counted
}

// scoreSoftTaints prefers nodes with fewer PreferNoSchedule taints that the Pod
// does not tolerate.
func scoreSoftTaints(d *Demand, fitting []*nodeState, total []int64) {
	var most int64
	counts := make([]int64, len(fitting))
	for i, n := range fitting {
		for t := range n.node.Spec.Taints {
			taint := &n.node.Spec.Taints[t]
			if taint.Effect == v1.TaintEffectPreferNoSchedule && !tolerates(d.tolerateSoft, taint) {
				counts[i]++
			}
		}
		most = max(most, counts[i])
	}
	if most == 0 {
		return
	}
	for i := range fitting {
		total[i] += weightTaint * (maxScore - maxScore*counts[i]/most)
	}
}

// scorePreference prefers nodes by the weights of the preferred affinity terms
// they match, relative to the best of them.
func scorePreference(d *Demand, fitting []*nodeState, total []int64) {
	if d.preferred == nil {
		return
	}
	var most int64
	weights := make([]int64, len(fitting))
	for i, n := range fitting {
		weights[i] = d.preferred.Score(n.node)
		most = max(most, weights[i])
	}
	if most == 0 {
		return
	}
	for i := range fitting {
		total[i] += weightAffinity * maxScore * weights[i] / most
	}
}

// scoreSpread prefers nodes with fewer Pods of the same controller: what
// upstream's default topology spread constraint over hosts amounts to.
func scoreSpread(d *Demand, fitting []*nodeState, total []int64) {
	if d.controller == "" {
		return
	}
	weight := math.Log(float64(len(fitting) + 2))
	raw := make([]int64, len(fitting))
	least, most := int64(math.MaxInt64), int64(0)
	for i, n := range fitting {
		raw[i] = int64(math.Round(float64(n.siblings[d.controller])*weight + spreadSkew - 1))
		least, most = min(least, raw[i]), max(most, raw[i])
	}
	for i := range fitting {
		total[i] += weightSpread * maxScore * (most + least - raw[i]) / most
	}
}

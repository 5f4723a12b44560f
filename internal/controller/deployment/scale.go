package deployment

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	apps "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// limits bound a rolling update, in Pods.
type limits struct {
	surge       int32 // above the wanted count
	unavailable int32 // below it
}

// resolveLimits turns maxSurge and maxUnavailable into Pods. Of percentages surge
// is rounded up and unavailable down; if both come to 0 one Pod may be
// unavailable, or nothing could ever move.
//
//	want 3,  25 %/25 % → surge 1, unavailable 0
//	want 10, 25 %/25 % → surge 3, unavailable 2
//	want 15, 25 %/25 % → surge 4, unavailable 3
//	want 2,  0/1 %     → surge 0, unavailable 0 → 1
//
// Under Recreate both are 0.
func resolveLimits(strategy apps.DeploymentStrategy, want int32) limits {
	if strategy.Type != apps.RollingUpdateDeploymentStrategyType {
		return limits{}
	}
	asked := ptr.Deref(strategy.RollingUpdate, apps.RollingUpdateDeployment{})
	l := limits{
		surge:       share(asked.MaxSurge, want, true),
		unavailable: share(asked.MaxUnavailable, want, false),
	}
	if l.surge == 0 && l.unavailable == 0 {
		l.unavailable = 1
	}
	l.unavailable = min(l.unavailable, want)
	return l
}

func share(of *intstr.IntOrString, want int32, roundUp bool) int32 {
	if of == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(of, int(want), roundUp)
	if err != nil {
		return 0 // not a number: validation admits none
	}
	return int32(n)
}

// floor is the fewest available Pods at any moment.
func (r *rollout) floor() int32 { return r.want - r.limits.unavailable }

// ceiling is the most Pods at any moment.
func (r *rollout) ceiling() int32 { return r.want + r.limits.surge }

func scaledWhy(name string, from, to int32) string {
	direction := "up"
	if to < from {
		direction = "down"
	}
	return fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, name, from, to)
}

// resize sets a size and, with it, the annotations that say for which size of
// the Deployment it was chosen.
func (r *rollout) resize(f *draft, to int32) {
	if f.replicas != to {
		f.replicas = to
		r.stamp(f)
	}
}

// stamp writes the Deployment's size and ceiling into the ReplicaSet, so that a
// later change of the size can be told from a rollout.
func (r *rollout) stamp(f *draft) {
	for key, value := range map[string]int32{desiredAnnotation: r.want, maxAnnotation: r.want + r.limits.surge} {
		if text := strconv.Itoa(int(value)); f.annotation(key) != text {
			f.annotate(key, text)
		}
	}
}

func createdWhy(name string, size int32) string {
	if size == 0 {
		return fmt.Sprintf("Created new replica set %q", name)
	}
	return scaledWhy(name, 0, size)
}

// active are the ReplicaSets that want Pods.
func (r *rollout) active() []*draft {
	return slices.DeleteFunc(slices.Clone(r.all()), func(f *draft) bool { return f.replicas == 0 })
}

// isScaled says whether the Deployment's size changed since an active ReplicaSet
// got its own. With several active ones under Recreate there is nothing to
// spread: going on with the rollout empties all but one.
func (r *rollout) isScaled() bool {
	active := r.active()
	if len(active) > 1 && r.d.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType {
		return false
	}
	return slices.ContainsFunc(active, func(f *draft) bool {
		desired, ok := count(f.rs.Annotations[desiredAnnotation])
		return ok && desired != r.want
	})
}

// scale follows a change of the Deployment's size without moving the rollout on.
func (r *rollout) scale() {
	active := r.active()
	switch {
	case len(r.all()) == 0:
	case len(active) == 0 && r.current != nil:
		r.scaleAlone(r.current)
	case len(active) == 0:
		r.scaleAlone(r.old[len(r.old)-1])
	case len(active) == 1:
		r.scaleAlone(active[0])
	case !r.isAcknowledged():
	case r.isSaturated():
		for _, f := range r.old {
			r.resize(f, 0)
		}
	case r.d.Spec.Strategy.Type == apps.RollingUpdateDeploymentStrategyType:
		r.scaleInProportion(active)
	}
}

// scaleAlone gives all Pods of the Deployment to one ReplicaSet.
func (r *rollout) scaleAlone(f *draft) {
	if f.replicas < r.want && !r.isQuiet() {
		return
	}
	r.resize(f, r.want)
	r.stamp(f)
}

// isQuiet says whether no ReplicaSet has, or may have, more Pods than it wants. As
// long as one has, growing could take the Deployment above its ceiling.
func (r *rollout) isQuiet() bool {
	return r.isAcknowledged() && !slices.ContainsFunc(r.all(), func(f *draft) bool { return f.footprint() > f.replicas })
}

// isSaturated says whether the new ReplicaSet has all Pods of the Deployment,
// available, and was given them for this size.
func (r *rollout) isSaturated() bool {
	if r.current == nil {
		return false
	}
	desired, ok := count(r.current.rs.Annotations[desiredAnnotation])
	return ok && desired == r.want && r.current.replicas == r.want && r.current.rs.Status.AvailableReplicas == r.want
}

// scaleInProportion spreads a change of the Deployment's size over the active
// ReplicaSets by their sizes, so that a rollout that may be going wrong is neither
// hastened nor undone. What rounding leaves over goes to the largest.
//
// 10 wanted, surge 3, old 8 and new 5; now 30 wanted, surge 8: 25 to add.
// old 8·38/13 = 23.4 → 23 (+15), new 5·38/13 = 14.6 → 15 (+10): nothing left over.
func (r *rollout) scaleInProportion(active []*draft) {
	allowed := int32(0)
	if r.want > 0 {
		allowed = r.ceiling()
	}
	var total int32
	for _, f := range active {
		total += f.replicas
	}
	change := allowed - total
	if change > 0 && !r.isQuiet() {
		return
	}
	slices.SortFunc(active, func(a, b *draft) int { return largerFirst(a, b, change) })
	sizes := make([]int32, len(active))
	var spread int32
	for i, f := range active {
		part := portion(f.replicas, r.target(f), change, spread)
		sizes[i] = f.replicas + part
		spread += part
	}
	sizes[0] = max(0, sizes[0]+change-spread)
	if change < 0 {
		r.keepFloor(active, sizes)
	}
	for i, f := range active {
		r.resize(f, sizes[i])
		r.stamp(f)
	}
}

// largerFirst orders by size; of equal ones the newer grows and the older
// shrinks first.
func largerFirst(a, b *draft, change int32) int {
	age := byAge(a.rs, b.rs)
	if change > 0 {
		age = -age
	}
	return cmp.Or(cmp.Compare(b.replicas, a.replicas), age)
}

// target is a ReplicaSet's size in proportion to the Deployment's new ceiling. The
// old ceiling is on the ReplicaSet; without it the Deployment's Pods must do.
func (r *rollout) target(f *draft) int32 {
	if r.want == 0 {
		return 0
	}
	before, ok := count(f.rs.Annotations[maxAnnotation])
	if !ok || before == 0 {
		before = r.d.Status.Replicas
	}
	if before == 0 {
		return f.replicas
	}
	return int32(math.Round(float64(f.replicas) * float64(r.ceiling()) / float64(before)))
}

// portion is a ReplicaSet's part of the change: the way to its target, in the
// direction of the change, and no more than is left of it.
//
//	size 8, target 23, change +25, spread 0 → +15
//	size 5, target 15, change +12, spread 8 → +4
//	size 8, target 6,  change +2            → 0: growing takes nothing from anybody
func portion(size, target, change, spread int32) int32 {
	left := change - spread
	if change > 0 {
		return max(0, min(target-size, left))
	}
	return min(0, max(target-size, left))
}

// keepFloor moves Pods between shrinking ReplicaSets where rounding would take
// available ones below the floor while unavailable ones stay. The sum is kept.
func (r *rollout) keepFloor(active []*draft, sizes []int32) {
	var kept int32
	for i, f := range active {
		kept += min(sizes[i], f.available())
	}
	short := r.floor() - kept
	for give, giver := range active {
		for take, taker := range active {
			moved := min(short, sizes[give]-giver.available(), taker.available()-sizes[take])
			if moved > 0 {
				sizes[give] -= moved
				sizes[take] += moved
				short -= moved
			}
		}
	}
}

// count reads a count from an annotation; false if there is none in it.
func count(text string) (int32, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int32(n), err == nil
}

package deployment

import (
	"cmp"
	"slices"

	apps "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
)

// roll moves a rolling update on: the new ReplicaSet grows into the room below
// the ceiling, the old ones shrink by what the floor spares. Growing counts Pods
// that shrinking is about to remove, shrinking counts none that growing is about
// to add: either may fail without the other breaking its bound.
func (r *rollout) roll() {
	if r.current == nil {
		r.draftCurrent()
	}
	if !r.isAcknowledged() {
		return
	}
	r.resize(r.current, r.nextSize())
	r.shrinkOld()
}

// isAcknowledged says whether every ReplicaSet's status is about its present size.
// Until then it tells neither how many Pods there may be (5 were asked for, 3 are
// reported, then 0 were asked for: up to 5) nor how many are still available (10
// were, then 5 were asked for, now 8 are: perhaps only 5). The ReplicaSet loop
// acknowledges a size as soon as it acts on it.
func (r *rollout) isAcknowledged() bool {
	return !slices.ContainsFunc(r.all(), func(f *draft) bool { return !f.create && isBehind(f.rs) })
}

func isBehind(rs *apps.ReplicaSet) bool { return rs.Generation > rs.Status.ObservedGeneration }

// nextSize is the new ReplicaSet's next size.
//
// 10 wanted, ceiling 13: new 3, old 8 → 2 more fit: 5.
// The same while the old one still has 10 Pods of which 2 are on their way out: 3.
func (r *rollout) nextSize() int32 {
	if r.current.replicas >= r.want {
		return r.want
	}
	room := r.ceiling()
	for _, f := range r.all() {
		room -= f.footprint()
	}
	return r.current.replicas + max(0, min(room, r.want-r.current.replicas))
}

// shrinkOld takes from the old ReplicaSets, oldest first, in two passes: Pods that
// are not available, since they serve nobody and may never; then available ones
// down to the floor.
//
// The first pass may not take more than the Pods above the floor that the new
// ReplicaSet does not owe. 10 wanted, 2 unavailable allowed, floor 8; old 8 of
// which 1 broke down, new 5 that never became available: 13 − 8 − 5 = 0, nothing
// may go. After an undo the 8 are the new ones and the 5 the old: 13 − 8 − 1 = 4.
func (r *rollout) shrinkOld() {
	var total int32
	for _, f := range r.all() {
		total += f.replicas
	}
	owed := r.current.replicas - r.current.available()
	spare := total - r.floor() - owed
	for _, f := range r.old {
		if unhealthy := f.replicas - f.available(); unhealthy > 0 && spare > 0 {
			taken := min(unhealthy, spare)
			r.resize(f, f.replicas-taken)
			spare -= taken
		}
	}
	// Whatever is still to spare are available Pods above the floor.
	for _, f := range r.old {
		if spare > 0 {
			taken := min(f.replicas, spare)
			r.resize(f, f.replicas-taken)
			spare -= taken
		}
	}
}

// recreate moves a Recreate rollout on: all old Pods end, then the new ones begin.
func (r *rollout) recreate(runningPods map[types.UID]int) {
	for _, f := range r.old {
		r.resize(f, 0)
	}
	if r.resizes() || r.oldPodsRun(runningPods) {
		return
	}
	if r.current == nil {
		r.draftCurrent()
	}
	r.resize(r.current, r.want)
}

func (r *rollout) oldPodsRun(runningPods map[types.UID]int) bool {
	return slices.ContainsFunc(r.old, func(f *draft) bool {
		return f.rs.Status.Replicas > 0 || runningPods[f.rs.UID] > 0 || isBehind(f.rs)
	})
}

// cleanUp dooms the old ReplicaSets, lowest revision first, that are more than
// revisionHistoryLimit; those that have Pods, or may, are counted but stay.
func (r *rollout) cleanUp() {
	limit := r.d.Spec.RevisionHistoryLimit
	if limit == nil {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(r.old), func(f *draft) bool { return f.rs.DeletionTimestamp != nil })
	slices.SortStableFunc(kept, func(a, b *draft) int {
		revisionA, okA := revisionOf(a.rs)
		revisionB, okB := revisionOf(b.rs)
		if !okA || !okB {
			return byAge(a.rs, b.rs)
		}
		return cmp.Or(cmp.Compare(revisionA, revisionB), byAge(a.rs, b.rs))
	})
	for _, f := range kept[:max(0, len(kept)-int(*limit))] {
		if isEmpty(f.rs) && f.replicas == 0 {
			r.doomed = append(r.doomed, f)
		}
	}
}

func isEmpty(rs *apps.ReplicaSet) bool {
	return sizeOf(rs) == 0 && rs.Status.Replicas == 0 && !isBehind(rs)
}

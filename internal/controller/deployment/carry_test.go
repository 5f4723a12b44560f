package deployment

import (
	"fmt"
	"maps"
	"slices"

	apps "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// carryOut plays a plan's actions on a copy of the world: the first steps of them,
// or all of them and the status if steps is negative.
func carryOut(o Observed, p Plan, steps int) Observed {
	after := o
	after.Deployment = o.Deployment.DeepCopy()
	after.NameHolder, after.Failure = nil, nil
	after.ReplicaSets = nil
	byUID := map[types.UID]*apps.ReplicaSet{}
	for _, rs := range o.ReplicaSets {
		byUID[rs.UID] = rs.DeepCopy()
		after.ReplicaSets = append(after.ReplicaSets, byUID[rs.UID])
	}
	for i, action := range p.Actions {
		if i == steps {
			return after
		}
		after.ReplicaSets = played(after, action, byUID)
	}
	if steps >= 0 {
		return after
	}
	if p.Status != nil {
		after.Deployment.Status = *p.Status.DeepCopy()
	}
	if p.Revision != "" {
		after.Deployment.Annotations = maps.Clone(after.Deployment.Annotations)
		if after.Deployment.Annotations == nil {
			after.Deployment.Annotations = map[string]string{}
		}
		after.Deployment.Annotations[revisionAnnotation] = p.Revision
	}
	return after
}

// played plays one action on the ReplicaSets of a world and returns them.
func played(o Observed, action Action, byUID map[types.UID]*apps.ReplicaSet) []*apps.ReplicaSet {
	switch a := action.(type) {
	case Adopt:
		byUID[a.ReplicaSet.UID].OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(o.Deployment, kind)}
	case Release:
		byUID[a.ReplicaSet.UID].OwnerReferences = nil
	case Create:
		rs := a.ReplicaSet.DeepCopy()
		rs.UID, rs.Generation = types.UID(rs.Name), 1
		rs.CreationTimestamp = metav1.NewTime(start.AddDate(0, 0, len(o.ReplicaSets)))
		return append(o.ReplicaSets, rs)
	case Update:
		update(byUID[a.ReplicaSet.UID], a)
	case Delete:
		return slices.DeleteFunc(o.ReplicaSets, func(rs *apps.ReplicaSet) bool { return rs.UID == a.ReplicaSet.UID })
	case Notice:
	default:
		panic(fmt.Sprintf("unknown action %T", action))
	}
	return o.ReplicaSets
}

func update(rs *apps.ReplicaSet, a Update) {
	if *rs.Spec.Replicas != a.Replicas || rs.Spec.MinReadySeconds != a.MinReadySeconds {
		rs.Generation++
	}
	rs.Spec.Replicas, rs.Spec.MinReadySeconds = ptr.To(a.Replicas), a.MinReadySeconds
	rs.Annotations = maps.Clone(rs.Annotations)
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	maps.Copy(rs.Annotations, a.Annotations)
}

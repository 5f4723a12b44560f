package deployment

import (
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var specialCases = map[string]planCase{
	"an orphan that matches is adopted before anything is counted": {
		world: func(o *Observed) { o.ReplicaSets[0].OwnerReferences = nil },
		want: func(o Observed) Plan {
			return Plan{Actions: []Action{Adopt{ReplicaSet: o.ReplicaSets[0], Why: "matches the selector and has no controller"}}}
		},
	},
	"an orphan being deleted, one of other labels and one of another owner are left alone": {
		world: func(o *Observed) {
			doomed, other, foreign := replicaSet(o.Deployment, 7, 7, 1, 1), replicaSet(o.Deployment, 8, 8, 1, 1), replicaSet(o.Deployment, 9, 9, 1, 1)
			doomed.OwnerReferences, doomed.DeletionTimestamp = nil, ptr.To(ago(time.Second))
			other.OwnerReferences, other.Labels = nil, map[string]string{"app": "db"}
			foreign.OwnerReferences[0].UID = "someone"
			o.ReplicaSets = append(o.ReplicaSets, doomed, other, foreign)
		},
		want: nothing,
	},
	"a ReplicaSet whose labels were changed is released": {
		world: func(o *Observed) { o.ReplicaSets[0].Labels = map[string]string{"app": "kept"} },
		want: func(o Observed) Plan {
			return Plan{Actions: []Action{Release{ReplicaSet: o.ReplicaSets[0], Why: "no longer matches the selector"}}}
		},
	},
	"a Deployment being deleted only tells its status": {
		world: func(o *Observed) {
			o.Deployment.DeletionTimestamp = ptr.To(ago(time.Second))
			rollTo(o, 3)
			o.ReplicaSets[0].OwnerReferences = nil
			o.ReplicaSets[1].Status.Replicas = 9
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) { s.Replicas, s.UpdatedReplicas = 9, 0 })}
		},
	},
	"a name that another has is left to it": {
		world: func(o *Observed) {
			rollTo(o, 3)
			o.NameHolder = replicaSet(o.Deployment, 1, 1, 0, 0)
		},
		want: func(o Observed) Plan {
			s := o.Deployment.Status.DeepCopy()
			s.CollisionCount = ptr.To[int32](1)
			return Plan{Status: s}
		},
	},
	"a second collision is counted too": {
		world: func(o *Observed) {
			rollTo(o, 3)
			o.Deployment.Status.CollisionCount = ptr.To[int32](1)
			o.NameHolder = replicaSet(o.Deployment, 1, 1, 0, 0)
		},
		want: func(o Observed) Plan {
			s := o.Deployment.Status.DeepCopy()
			s.CollisionCount = ptr.To[int32](2)
			return Plan{Status: s}
		},
	},
	"a holder of the name that is the ReplicaSet we wanted is taken": {
		world: func(o *Observed) { o.NameHolder = o.ReplicaSets[1] },
		want:  nothing,
	},
	"a refused ReplicaSet becomes a condition": {
		world: func(o *Observed) {
			rollTo(o, 3)
			o.Failure = &Failure{ReplicaSet: "web-x", Message: "replicasets.apps is forbidden: exceeded quota"}
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.UpdatedReplicas = 0
				s.Conditions[1] = progressing(v1.ConditionFalse, "ReplicaSetCreateError",
					`Failed to create new replica set "web-x": replicasets.apps is forbidden: exceeded quota`, 0)
			})}
		},
	},
	"an empty selector selects nothing and is told": {
		world: func(o *Observed) { o.Deployment.Spec.Selector = &metav1.LabelSelector{}; o.Deployment.Generation++ },
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Notice{Reason: "SelectingAll", Why: "This deployment is selecting all pods. A non-empty selector is required."}},
				Status:  statusOf(o, same),
			}
		},
	},
	"an empty selector is told once": {
		world: func(o *Observed) { o.Deployment.Spec.Selector = &metav1.LabelSelector{} },
		want:  nothing,
	},
	"history beyond the limit goes, lowest revision first, once the rollout is complete": {
		world: func(o *Observed) {
			o.Deployment.Spec.RevisionHistoryLimit = ptr.To[int32](1)
			d := o.Deployment
			o.ReplicaSets = []*apps.ReplicaSet{
				replicaSet(d, 2, 9, 10, 10), replicaSet(d, 1, 8, 0, 0), replicaSet(d, 5, 4, 0, 0), replicaSet(d, 4, 6, 0, 0),
			}
			d.Annotations[revisionAnnotation] = "9"
		},
		want: func(o Observed) Plan {
			return Plan{Actions: []Action{
				Delete{ReplicaSet: o.ReplicaSets[2], Why: "older than revisionHistoryLimit keeps"},
				Delete{ReplicaSet: o.ReplicaSets[3], Why: "older than revisionHistoryLimit keeps"},
			}}
		},
	},
	"without a limit all history stays": {
		world: func(o *Observed) { o.Deployment.Spec.RevisionHistoryLimit = nil },
		want:  nothing,
	},
	"what cannot tell its revision has its place in the history by age": {
		world: func(o *Observed) {
			o.Deployment.Spec.RevisionHistoryLimit = ptr.To[int32](1)
			odd := replicaSet(o.Deployment, 3, 0, 0, 0)
			odd.Annotations[revisionAnnotation] = "third"
			o.ReplicaSets = append(o.ReplicaSets, odd)
		},
		want: func(o Observed) Plan {
			return Plan{Actions: []Action{Delete{ReplicaSet: o.ReplicaSets[0], Why: "older than revisionHistoryLimit keeps"}}}
		},
	},
	"what still has Pods stays in the history": {
		world: func(o *Observed) {
			o.Deployment.Spec.RevisionHistoryLimit = ptr.To[int32](0)
			o.ReplicaSets[0].Status.Replicas = 1
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) { s.Replicas = 11 })}
		},
	},
	"what may still have Pods stays in the history": {
		world: func(o *Observed) {
			o.Deployment.Spec.RevisionHistoryLimit = ptr.To[int32](0)
			o.ReplicaSets[0].Generation = 2
		},
		want: nothing,
	},
	"history stays while the rollout runs": {
		base:  midway,
		world: func(o *Observed) { o.Deployment.Spec.RevisionHistoryLimit = ptr.To[int32](0) },
		want:  func(Observed) Plan { return Plan{Recheck: deadline(time.Minute)} },
	},
}

package deployment

import (
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var scaledCases = map[string]planCase{
	"a settled Deployment is scaled by its one ReplicaSet": {
		world: func(o *Observed) { scaleTo(o, 12) },
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[1], Replicas: 12, Why: "Scaled up replica set web-v2 from 10 to 12",
					Annotations: map[string]string{desiredAnnotation: "12", maxAnnotation: "15"},
				}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) { s.UnavailableReplicas = 2 }),
			}
		},
	},
	"a change of size and template is taken one by one, and the generation appears with the second": {
		world: func(o *Observed) { scaleTo(o, 12); rollTo(o, 3) },
		want: func(o Observed) Plan {
			s := o.Deployment.Status.DeepCopy()
			s.UpdatedReplicas, s.UnavailableReplicas = 0, 2
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[1], Replicas: 12, Why: "Scaled up replica set web-v2 from 10 to 12",
					Annotations: map[string]string{desiredAnnotation: "12", maxAnnotation: "15"},
				}},
				Status: s,
			}
		},
	},
	"a size that somebody gave the ReplicaSet already is only noted": {
		world: func(o *Observed) { scaleTo(o, 12); o.ReplicaSets[1].Spec.Replicas = ptr.To[int32](12) },
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[1], Replicas: 12, Why: "annotations or minReadySeconds differ from the Deployment's",
					Annotations: map[string]string{desiredAnnotation: "12", maxAnnotation: "15"},
				}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) { s.UnavailableReplicas = 2 }),
			}
		},
	},
	"pausing a settled Deployment only notes it": {
		world: func(o *Observed) { o.Deployment.Spec.Paused = true; o.Deployment.Generation++ },
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.Conditions = []apps.DeploymentCondition{
					isAvailable(time.Hour), progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", 0),
				}
			})}
		},
	},
	"a new template while paused starts nothing": {
		world: func(o *Observed) { o.Deployment.Spec.Paused = true; rollTo(o, 3) },
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.UpdatedReplicas = 0
				s.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", 0)
			})}
		},
	},
	"pausing an overdue rollout keeps the verdict": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Spec.Paused = true
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionFalse, "ProgressDeadlineExceeded", "late", time.Minute)
		},
		want: nothing,
	},
	"resuming lets the deadline begin anew and the rollout go on": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Generation++
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", 2*time.Hour)
			o.ReplicaSets[2] = replicaSet(o.Deployment, 3, 3, 3, 0)
			o.Deployment.Status.Replicas, o.Deployment.Status.UpdatedReplicas, o.Deployment.Status.UnavailableReplicas = 11, 3, 3
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{ReplicaSet: o.ReplicaSets[2], Replicas: 5, Why: "Scaled up replica set web-v3 from 3 to 5"}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.UnavailableReplicas = 5
					s.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed", 0)
					s.Conditions[1].LastTransitionTime = ago(2 * time.Hour)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"once the new ReplicaSet serves alone, old ones that come back are emptied when paused": {
		world: func(o *Observed) {
			o.Deployment.Spec.Paused = true
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", time.Hour)
			o.ReplicaSets[0] = replicaSet(o.Deployment, 1, 1, 2, 2)
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{ReplicaSet: o.ReplicaSets[0], Replicas: 0, Why: "Scaled down replica set web-v1 from 2 to 0"}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.Replicas, s.ReadyReplicas, s.AvailableReplicas = 12, 12, 12
				}),
			}
		},
	},
	"while paused, a saturation that is not acknowledged empties nothing": { // found by simulation
		world: func(o *Observed) {
			o.Deployment.Spec.Paused = true
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", time.Hour)
			o.ReplicaSets[0] = replicaSet(o.Deployment, 1, 1, 2, 2)
			o.ReplicaSets[1].Generation = 2
			o.Deployment.Status.Replicas, o.Deployment.Status.ReadyReplicas, o.Deployment.Status.AvailableReplicas = 12, 12, 12
		},
		want: nothing,
	},
	"a growing size waits while more Pods exist than are wanted": {
		world: func(o *Observed) {
			scaleTo(o, 12)
			o.ReplicaSets[0].Status.Replicas, o.Deployment.Status.Replicas = 2, 12
		},
		want: func(o Observed) Plan { return Plan{Status: statusOf(o, same)} },
	},
	"a size that has to wait does so without looking at the clock": {
		base: midway,
		world: func(o *Observed) {
			scaleTo(o, 12)
			o.ReplicaSets[1].Generation = 2
			o.Deployment.Status.Conditions[1].LastUpdateTime = ago(time.Hour)
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.Conditions = []apps.DeploymentCondition{s.Conditions[1], isUnavailable(0)}
			})}
		},
	},
	"while paused, a new ReplicaSet that still has Pods it no longer wants is not saturated": {
		world: func(o *Observed) {
			o.Deployment.Spec.Paused = true
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", time.Hour)
			o.ReplicaSets[0] = replicaSet(o.Deployment, 1, 1, 3, 3)
			o.ReplicaSets[1].Spec.Replicas = ptr.To[int32](8)
			o.Deployment.Status.Replicas, o.Deployment.Status.ReadyReplicas, o.Deployment.Status.AvailableReplicas = 13, 13, 13
		},
		want: nothing,
	},
	"without a deadline a change of size notes no progress": {
		world: func(o *Observed) {
			o.Deployment.Spec.ProgressDeadlineSeconds = nil
			o.Deployment.Status.Conditions = o.Deployment.Status.Conditions[:1]
			scaleTo(o, 12)
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[1], Replicas: 12, Why: "Scaled up replica set web-v2 from 10 to 12",
					Annotations: map[string]string{desiredAnnotation: "12", maxAnnotation: "15"},
				}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) { s.UnavailableReplicas = 2 }),
			}
		},
	},
	"an undo while paused is numbered, and begins when resumed": {
		world: func(o *Observed) {
			o.Deployment.Spec.Paused = true
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", time.Hour)
			rollTo(o, 1)
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[0], Replicas: 0, Why: "annotations or minReadySeconds differ from the Deployment's",
					Annotations: map[string]string{revisionAnnotation: "3", historyAnnotation: "1"},
				}},
				Revision: "3",
				Status:   statusOf(o, func(s *apps.DeploymentStatus) { s.UpdatedReplicas = 0 }),
			}
		},
	},
	"scaled up from nothing the newest grows": {
		world: func(o *Observed) {
			o.Deployment.Spec.Paused = true
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionUnknown, "DeploymentPaused", "Deployment is paused", time.Hour)
			rollTo(o, 3)
			o.ReplicaSets[1] = replicaSet(o.Deployment, 2, 2, 0, 0)
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{ReplicaSet: o.ReplicaSets[1], Replicas: 10, Why: "Scaled up replica set web-v2 from 0 to 10"}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas = 0, 0, 0, 0, 10
					s.Conditions = []apps.DeploymentCondition{s.Conditions[1], isUnavailable(0)}
				}),
			}
		},
	},
}

func recreateWorld(o *Observed) {
	o.Deployment.Spec.Strategy = apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
	for _, rs := range o.ReplicaSets {
		rs.Annotations[maxAnnotation] = "10"
	}
	rollTo(o, 3)
}

var recreateCases = map[string]planCase{
	"Recreate first takes the old Pods away": {
		world: recreateWorld,
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{ReplicaSet: o.ReplicaSets[1], Replicas: 0, Why: "Scaled down replica set web-v2 from 10 to 0"}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.UpdatedReplicas = 0
					s.Conditions[1] = progressing(v1.ConditionTrue, "ReplicaSetUpdated", `Deployment "web" is progressing.`, 0)
					s.Conditions[1].LastTransitionTime = ago(time.Hour)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"Recreate waits for old Pods that are counted out but still run": {
		world: func(o *Observed) {
			recreateWorld(o)
			o.ReplicaSets[1] = replicaSet(o.Deployment, 2, 2, 0, 0)
			o.RunningPods = map[types.UID]int{"web-v2": 1}
			o.Deployment.Status = apps.DeploymentStatus{
				ObservedGeneration: 3, TerminatingReplicas: ptr.To[int32](0),
				Conditions: []apps.DeploymentCondition{
					progressing(v1.ConditionTrue, "ReplicaSetUpdated", `Deployment "web" is progressing.`, time.Minute), isUnavailable(time.Minute),
				},
			}
		},
		want: func(Observed) Plan { return Plan{Recheck: deadline(time.Minute)} },
	},
	"Recreate starts the new ones when no old Pod runs": {
		world: func(o *Observed) {
			recreateWorld(o)
			o.ReplicaSets[1] = replicaSet(o.Deployment, 2, 2, 0, 0)
			o.Deployment.Status = apps.DeploymentStatus{
				ObservedGeneration: 3, TerminatingReplicas: ptr.To[int32](0),
				Conditions: []apps.DeploymentCondition{
					progressing(v1.ConditionTrue, "ReplicaSetUpdated", `Deployment "web" is progressing.`, time.Minute), isUnavailable(time.Minute),
				},
			}
		},
		want: func(o Observed) Plan {
			rs := newReplicaSet(o.Deployment, 10, stamps("3", 10, 10))
			return Plan{
				Actions:  []Action{Create{ReplicaSet: rs, Why: "Scaled up replica set " + rs.Name + " from 0 to 10"}},
				Revision: "3",
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.UnavailableReplicas = 10
					created := progressing(v1.ConditionTrue, "NewReplicaSetCreated", `Created new replica set "`+rs.Name+`"`, 0)
					created.LastTransitionTime = ago(time.Minute)
					s.Conditions = []apps.DeploymentCondition{isUnavailable(time.Minute), created}
				}),
				Recheck: deadline(0),
			}
		},
	},
	"Recreate with old Pods and no condition yet has nothing to be late for": {
		world: func(o *Observed) {
			recreateWorld(o)
			o.Deployment.Status.Conditions = o.Deployment.Status.Conditions[:1]
			o.ReplicaSets[1].Spec.Replicas = ptr.To[int32](0)
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) { s.UpdatedReplicas = 0 })}
		},
	},
	"Recreate follows a change of size before one of the template": {
		world: func(o *Observed) { recreateWorld(o); scaleTo(o, 4) },
		want: func(o Observed) Plan {
			s := o.Deployment.Status.DeepCopy()
			s.UpdatedReplicas = 0
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[1], Replicas: 4, Why: "Scaled down replica set web-v2 from 10 to 4",
					Annotations: map[string]string{desiredAnnotation: "4", maxAnnotation: "4"},
				}},
				Status: s,
			}
		},
	},
	"Recreate with several active ReplicaSets and a changed size goes on emptying": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Spec.Strategy = apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
			scaleTo(o, 4)
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[1], Replicas: 0, Why: "Scaled down replica set web-v2 from 8 to 0",
					Annotations: map[string]string{desiredAnnotation: "4", maxAnnotation: "4"},
				}},
				Status:  statusOf(o, func(s *apps.DeploymentStatus) { s.UnavailableReplicas = 0 }),
				Recheck: deadline(time.Minute),
			}
		},
	},
}

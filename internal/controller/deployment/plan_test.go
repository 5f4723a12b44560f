package deployment

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// planCase is the base world with one mutation, and the whole plan expected.
type planCase struct {
	base  func() Observed // settled unless given
	world func(o *Observed)
	want  func(o Observed) Plan
}

// statusOf is the observed status with changes.
func statusOf(o Observed, change func(s *apps.DeploymentStatus)) *apps.DeploymentStatus {
	s := o.Deployment.Status.DeepCopy()
	s.ObservedGeneration = o.Deployment.Generation
	change(s)
	return s
}

func same(*apps.DeploymentStatus) {}

func nothing(Observed) Plan { return Plan{} }

// deadline is when to look again after progress at the given age.
func deadline(age time.Duration) time.Time { return start.Add(-age + 601*time.Second) }

var rolloutCases = map[string]planCase{
	"a settled Deployment needs nothing": {world: func(*Observed) {}, want: nothing},
	"a Deployment that is new gets a ReplicaSet of its full size": {
		world: func(o *Observed) {
			o.ReplicaSets = nil
			o.Deployment.Generation, o.Deployment.Annotations, o.Deployment.Status = 1, nil, apps.DeploymentStatus{}
		},
		want: func(o Observed) Plan {
			rs := newReplicaSet(o.Deployment, 10, stamps("1", 10, 13))
			return Plan{
				Actions:  []Action{Create{ReplicaSet: rs, Why: "Scaled up replica set " + rs.Name + " from 0 to 10"}},
				Revision: "1",
				Status: &apps.DeploymentStatus{
					ObservedGeneration: 1, UnavailableReplicas: 10, TerminatingReplicas: ptr.To[int32](0),
					Conditions: []apps.DeploymentCondition{
						progressing(v1.ConditionTrue, "NewReplicaSetCreated", `Created new replica set "`+rs.Name+`"`, 0),
						isUnavailable(0),
					},
				},
				Recheck: deadline(0),
			}
		},
	},
	"a new template starts a rollout: up to the ceiling and down to the floor at once": {
		world: func(o *Observed) { rollTo(o, 3) },
		want: func(o Observed) Plan {
			rs := newReplicaSet(o.Deployment, 3, stamps("3", 10, 13))
			return Plan{
				Actions: []Action{
					Create{ReplicaSet: rs, Why: "Scaled up replica set " + rs.Name + " from 0 to 3"},
					Update{ReplicaSet: o.ReplicaSets[1], Replicas: 8, Why: "Scaled down replica set web-v2 from 10 to 8"},
				},
				Revision: "3",
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.UpdatedReplicas, s.UnavailableReplicas = 0, 1
					s.Conditions = []apps.DeploymentCondition{
						isAvailable(time.Hour),
						progressing(v1.ConditionTrue, "NewReplicaSetCreated", `Created new replica set "`+rs.Name+`"`, 0),
					}
					s.Conditions[1].LastTransitionTime = ago(time.Hour)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"the next step follows the Pods that became available": {
		base: midway,
		world: func(o *Observed) {
			o.ReplicaSets[2].Status.ReadyReplicas, o.ReplicaSets[2].Status.AvailableReplicas = 2, 2
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{ReplicaSet: o.ReplicaSets[1], Replicas: 6, Why: "Scaled down replica set web-v2 from 8 to 6"}},
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas = 10, 10, 1
					s.Conditions[1].LastUpdateTime = ago(0)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"without progress nothing is done but to wait for the deadline": {
		base: midway, world: func(*Observed) {},
		want: func(Observed) Plan { return Plan{Recheck: deadline(time.Minute)} },
	},
	"after the deadline the rollout is overdue, and nothing else is done about it": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Status.Conditions[1].LastUpdateTime = ago(601 * time.Second)
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.Conditions[1] = progressing(v1.ConditionFalse, "ProgressDeadlineExceeded", `ReplicaSet "web-v3" has timed out progressing.`, 0)
			})}
		},
	},
	"exactly at the deadline it is not overdue yet": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Status.Conditions[1].LastUpdateTime = ago(600 * time.Second)
		},
		want: func(Observed) Plan { return Plan{Recheck: start.Add(time.Second)} },
	},
	"an overdue rollout that moves again is progressing": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionFalse, "ProgressDeadlineExceeded", `ReplicaSet "web-v3" has timed out progressing.`, time.Minute)
			o.ReplicaSets[2].Status.ReadyReplicas = 1
		},
		want: func(o Observed) Plan {
			return Plan{
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.ReadyReplicas = 9
					s.Conditions[1] = progressing(v1.ConditionTrue, "ReplicaSetUpdated", `ReplicaSet "web-v3" is progressing.`, 0)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"without a deadline there is no Progressing condition": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Spec.ProgressDeadlineSeconds = ptr.To[int32](2147483647)
			o.Deployment.Generation++
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) { s.Conditions = s.Conditions[:1] })}
		},
	},
	"when all Pods are new and available the rollout has succeeded": {
		base: midway,
		world: func(o *Observed) {
			o.ReplicaSets[1] = replicaSet(o.Deployment, 2, 2, 0, 0)
			o.ReplicaSets[2] = replicaSet(o.Deployment, 3, 3, 10, 10)
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas = 10, 10, 10, 10, 0
				s.Conditions[1] = isDone(3, 0)
				s.Conditions[1].LastTransitionTime = ago(time.Minute)
			})}
		},
	},
	"a Pod lost after the rollout is no lack of progress": {
		world: func(o *Observed) {
			rs := o.ReplicaSets[1]
			rs.Status.ReadyReplicas, rs.Status.AvailableReplicas = 9, 9
			o.Deployment.Spec.ProgressDeadlineSeconds = ptr.To[int32](1)
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas = 9, 9, 1
			})}
		},
	},
	"below the floor the Deployment is not available": {
		world: func(o *Observed) {
			rs := o.ReplicaSets[1]
			rs.Status.ReadyReplicas, rs.Status.AvailableReplicas = 7, 7
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas = 7, 7, 3
				s.Conditions = []apps.DeploymentCondition{isDone(2, time.Hour), isUnavailable(0)}
			})}
		},
	},
	"refused Pods of the new ReplicaSet become ReplicaFailure": {
		base: midway,
		world: func(o *Observed) {
			for i, message := range []string{1: "old quota", 2: "new quota"} {
				o.ReplicaSets[i].Status.Conditions = []apps.ReplicaSetCondition{{
					Type: apps.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Reason: "FailedCreate", Message: message,
					LastTransitionTime: ago(time.Second),
				}}
			}
		},
		want: func(o Observed) Plan {
			return Plan{
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.Conditions = append(s.Conditions, condition(apps.DeploymentReplicaFailure, v1.ConditionTrue, "FailedCreate", "new quota", time.Second))
				}),
				Recheck: deadline(time.Minute),
			}
		},
	},
	"terminating Pods of all ReplicaSets are told": {
		world: func(o *Observed) {
			o.ReplicaSets[0].Status.TerminatingReplicas = ptr.To[int32](2)
			o.ReplicaSets[1].Status.TerminatingReplicas = ptr.To[int32](1)
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) { s.TerminatingReplicas = ptr.To[int32](3) })}
		},
	},
	"how many Pods terminate is unknown when a ReplicaSet does not tell": {
		world: func(o *Observed) { o.ReplicaSets[0].Status.TerminatingReplicas = nil },
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) { s.TerminatingReplicas = nil })}
		},
	},
	"until a size is acknowledged nothing is moved": {
		base: midway,
		world: func(o *Observed) {
			o.ReplicaSets[1].Generation = 2
			o.ReplicaSets[2].Status.AvailableReplicas = 5
			o.Deployment.Status.AvailableReplicas, o.Deployment.Status.UnavailableReplicas = 13, 0
		},
		want: func(Observed) Plan { return Plan{Recheck: deadline(time.Minute)} },
	},
	"a rollover that begins before a size is acknowledged begins without Pods": {
		base:  midway,
		world: func(o *Observed) { o.ReplicaSets[2].Generation = 2; rollTo(o, 4) },
		want: func(o Observed) Plan {
			rs := newReplicaSet(o.Deployment, 0, stamps("4", 10, 13))
			return Plan{
				Actions:  []Action{Create{ReplicaSet: rs, Why: `Created new replica set "` + rs.Name + `"`}},
				Revision: "4",
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.UpdatedReplicas = 0
					s.Conditions[1] = progressing(v1.ConditionTrue, "NewReplicaSetCreated", `Created new replica set "`+rs.Name+`"`, 0)
					s.Conditions[1].LastTransitionTime = ago(time.Minute)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"a new minReadySeconds goes to the new ReplicaSet": {
		world: func(o *Observed) { o.Deployment.Spec.MinReadySeconds = 5; o.Deployment.Generation++ },
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[1], Replicas: 10, MinReadySeconds: 5,
					Why: "annotations or minReadySeconds differ from the Deployment's",
				}},
				Status: statusOf(o, same),
			}
		},
	},
}

var undoCases = map[string]planCase{
	"an old template again makes its ReplicaSet the new one, with a new revision": {
		world: func(o *Observed) { rollTo(o, 1) },
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{
					Update{
						ReplicaSet: o.ReplicaSets[0], Replicas: 3, Why: "Scaled up replica set web-v1 from 0 to 3",
						Annotations: map[string]string{revisionAnnotation: "3", historyAnnotation: "1"},
					},
					Update{ReplicaSet: o.ReplicaSets[1], Replicas: 8, Why: "Scaled down replica set web-v2 from 10 to 8"},
				},
				Revision: "3",
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.UpdatedReplicas, s.UnavailableReplicas = 0, 1
					s.Conditions[1] = progressing(v1.ConditionTrue, "FoundNewReplicaSet", `Found new replica set "web-v1"`, 0)
					s.Conditions[1].LastTransitionTime = ago(time.Hour)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"undoing an overdue rollout takes the verdict away in the same write": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionFalse, "ProgressDeadlineExceeded", `ReplicaSet "web-v3" has timed out progressing.`, time.Minute)
			rollTo(o, 2)
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{
					Update{
						ReplicaSet: o.ReplicaSets[1], Replicas: 8, Why: "annotations or minReadySeconds differ from the Deployment's",
						Annotations: map[string]string{revisionAnnotation: "4", historyAnnotation: "2"},
					},
					Update{ReplicaSet: o.ReplicaSets[2], Replicas: 0, Why: "Scaled down replica set web-v3 from 5 to 0"},
				},
				Revision: "4",
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.UpdatedReplicas, s.UnavailableReplicas = 8, 0
					s.Conditions[1] = progressing(v1.ConditionTrue, "ReplicaSetUpdated", `ReplicaSet "web-v2" is progressing.`, 0)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"of two ReplicaSets with the template the older is the new one": {
		world: func(o *Observed) {
			twin := replicaSet(o.Deployment, 3, 3, 0, 0)
			twin.Spec.Template.Spec = template(2).Spec
			o.ReplicaSets = append([]*apps.ReplicaSet{twin}, o.ReplicaSets...)
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{Update{
					ReplicaSet: o.ReplicaSets[2], Replicas: 10, Why: "annotations or minReadySeconds differ from the Deployment's",
					Annotations: map[string]string{revisionAnnotation: "4", historyAnnotation: "2"},
				}},
				Revision: "4",
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.Conditions[1].LastUpdateTime = ago(0)
				}),
			}
		},
	},
}

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

func TestPlan(t *testing.T) {
	for _, cases := range []map[string]planCase{rolloutCases, undoCases, specialCases, scaledCases, recreateCases} {
		for name, test := range cases {
			t.Run(name, func(t *testing.T) {
				base := test.base
				if base == nil {
					base = settled
				}
				o := base()
				test.world(&o)
				if diff := cmp.Diff(test.want(o), plan(o, start), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("plan (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Reports of k#111732 and kubectl#1869: the cause of one revision was shown for the next.
func TestEachRevisionHasItsOwnCause(t *testing.T) {
	o := settled()
	o.ReplicaSets[0].Annotations[causeAnnotation] = "image 1.0"
	o.ReplicaSets[1].Annotations[causeAnnotation] = "image 2.0"
	annotate := func(cause string) { o.Deployment.Annotations[causeAnnotation] = cause }
	step := func(wantName, wantCause string) {
		t.Helper()
		o = carryOut(o, plan(o, start), -1)
		for _, rs := range o.ReplicaSets {
			if strings.HasPrefix(rs.Name, wantName) && rs.Annotations[causeAnnotation] != wantCause {
				t.Errorf("cause of %s is %q, want %q", rs.Name, rs.Annotations[causeAnnotation], wantCause)
			}
		}
	}
	annotate("image 2.0")
	rollTo(&o, 3)
	third := newReplicaSet(o.Deployment, 0, nil).Name
	step(third, "") // the image was set; the cause on the Deployment is still that of revision 2
	step(third, "") // and it does not creep in later
	annotate("image 3.0")
	step(third, "image 3.0")
	step("web-v2", "image 2.0")

	rollTo(&o, 4) // two changes without a cause of their own
	fourth := newReplicaSet(o.Deployment, 0, nil).Name
	step(fourth, "")
	rollTo(&o, 5)
	fifth := newReplicaSet(o.Deployment, 0, nil).Name
	step(fifth, "")

	rollTo(&o, 1) // the first manifest is applied again: the stale cause is not its
	step("web-v1", "image 1.0")
	annotate("back to 1.0")
	step("web-v1", "back to 1.0")
	step(third, "image 3.0")
}

func TestAnnotationsOfTheDeploymentReachTheNewReplicaSet(t *testing.T) {
	o := settled()
	for _, key := range []string{"team", v1.LastAppliedConfigAnnotation, historyAnnotation, desiredAnnotation, apps.DeprecatedRollbackTo} {
		o.Deployment.Annotations[key] = "x"
	}
	want := Update{
		ReplicaSet: o.ReplicaSets[1], Replicas: 10, Annotations: map[string]string{"team": "x"},
		Why: "annotations or minReadySeconds differ from the Deployment's",
	}
	if diff := cmp.Diff([]Action{want}, plan(o, start).Actions); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	if got := appendHistory("", "1"); got != "1" {
		t.Errorf("history %q", got)
	}
	if got := appendHistory("1,3", "5"); got != "1,3,5" {
		t.Errorf("history %q", got)
	}
	long := strings.Repeat("1234567,", 249) + "1234567" // 1999 characters
	if got := appendHistory(long, "1"); len(got) > maxHistory || !strings.HasSuffix(got, ",1234567,1") || !strings.HasPrefix(got, "1234567,") {
		t.Errorf("history of %d characters: %s…", len(got), got[:30])
	}
}

func TestOneReplicaSurgesBeforeItShrinks(t *testing.T) {
	d := rollingDeployment(1, intstr.FromInt32(1), intstr.FromInt32(0))
	o := Observed{Deployment: d, ReplicaSets: []*apps.ReplicaSet{replicaSet(d, 2, 2, 1, 1)}}
	rollTo(&o, 3)
	p := plan(o, start)
	if len(p.Actions) != 1 || *p.Actions[0].(Create).ReplicaSet.Spec.Replicas != 1 {
		t.Errorf("actions %+v, want one Create of 1 Pod", p.Actions)
	}
}

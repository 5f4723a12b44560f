package deployment

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
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
	"an overdue rollout stays overdue": {
		base: midway,
		world: func(o *Observed) {
			o.Deployment.Status.Conditions[1] = progressing(v1.ConditionFalse, "ProgressDeadlineExceeded", `ReplicaSet "web-v3" has timed out progressing.`, time.Minute)
		},
		want: nothing,
	},
	"old Pods that went are progress": {
		base:  midway,
		world: func(o *Observed) { o.Deployment.Status.Replicas = 15 },
		want: func(o Observed) Plan {
			return Plan{
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.Replicas, s.Conditions[1].LastUpdateTime = 13, ago(0)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"new Pods are progress": {
		base:  midway,
		world: func(o *Observed) { o.Deployment.Status.Replicas, o.Deployment.Status.UpdatedReplicas = 11, 3 },
		want: func(o Observed) Plan {
			return Plan{
				Status: statusOf(o, func(s *apps.DeploymentStatus) {
					s.Replicas, s.UpdatedReplicas, s.Conditions[1].LastUpdateTime = 13, 5, ago(0)
				}),
				Recheck: deadline(0),
			}
		},
	},
	"Pods that come after a change of size are no rollout": {
		world: func(o *Observed) {
			rs := o.ReplicaSets[1]
			rs.Status.Replicas, rs.Status.ReadyReplicas, rs.Status.AvailableReplicas = 9, 9, 9
			o.Deployment.Status.Replicas, o.Deployment.Status.UpdatedReplicas = 8, 8
			o.Deployment.Status.ReadyReplicas, o.Deployment.Status.AvailableReplicas = 8, 8
		},
		want: func(o Observed) Plan {
			return Plan{Status: statusOf(o, func(s *apps.DeploymentStatus) {
				s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas = 9, 9, 9, 9, 1
			})}
		},
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

func TestOneReplicaSurgesBeforeItShrinks(t *testing.T) {
	d := rollingDeployment(1, intstr.FromInt32(1), intstr.FromInt32(0))
	o := Observed{Deployment: d, ReplicaSets: []*apps.ReplicaSet{replicaSet(d, 2, 2, 1, 1)}}
	rollTo(&o, 3)
	p := plan(o, start)
	if len(p.Actions) != 1 || *p.Actions[0].(Create).ReplicaSet.Spec.Replicas != 1 {
		t.Errorf("actions %+v, want one Create of 1 Pod", p.Actions)
	}
}

package deployment

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// start is when every plan of a table is made.
var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(-d)) }

// template is the Pod template of a version: version 2 has the image web:2.
func template(version int) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: fmt.Sprintf("web:%d", version)}}},
	}
}

// rollingDeployment is the Deployment "web" of version 2 that was settled an hour ago.
func rollingDeployment(replicas int32, surge, unavailable intstr.IntOrString) *apps.Deployment {
	return &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "default", UID: "d", Generation: 2,
			Annotations: map[string]string{revisionAnnotation: "2"},
		},
		Spec: apps.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: template(2),
			Strategy: apps.DeploymentStrategy{
				Type:          apps.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &apps.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
			},
			RevisionHistoryLimit:    ptr.To[int32](10),
			ProgressDeadlineSeconds: ptr.To[int32](600),
		},
		Status: apps.DeploymentStatus{
			ObservedGeneration: 2, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas,
			AvailableReplicas: replicas, TerminatingReplicas: ptr.To[int32](0),
			Conditions: []apps.DeploymentCondition{isAvailable(time.Hour), isDone(2, time.Hour)},
		},
	}
}

func condition(kind apps.DeploymentConditionType, value v1.ConditionStatus, reason, message string, age time.Duration) apps.DeploymentCondition {
	return apps.DeploymentCondition{
		Type: kind, Status: value, Reason: reason, Message: message, LastUpdateTime: ago(age), LastTransitionTime: ago(age),
	}
}

func isAvailable(age time.Duration) apps.DeploymentCondition {
	return condition(apps.DeploymentAvailable, v1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.", age)
}

func isUnavailable(age time.Duration) apps.DeploymentCondition {
	return condition(apps.DeploymentAvailable, v1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.", age)
}

func progressing(value v1.ConditionStatus, reason, message string, age time.Duration) apps.DeploymentCondition {
	return condition(apps.DeploymentProgressing, value, reason, message, age)
}

func isDone(version int, age time.Duration) apps.DeploymentCondition {
	return progressing(v1.ConditionTrue, "NewReplicaSetAvailable", fmt.Sprintf("ReplicaSet %q has successfully progressed.", nameOf(version)), age)
}

func nameOf(version int) string { return fmt.Sprintf("web-v%d", version) }

// replicaSet is the ReplicaSet of a version and revision, available Pods of size.
func replicaSet(d *apps.Deployment, version, revision int, size, available int32) *apps.ReplicaSet {
	pods := template(version)
	pods.Labels[hashLabel] = fmt.Sprintf("v%d", version)
	limits := resolveLimits(d.Spec.Strategy, *d.Spec.Replicas)
	return &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: nameOf(version), Namespace: "default", UID: types.UID(nameOf(version)), Generation: 1,
			CreationTimestamp: ago(time.Duration(100-version) * time.Hour),
			Labels:            maps.Clone(pods.Labels),
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(d, kind)},
			Annotations: map[string]string{
				revisionAnnotation: strconv.Itoa(revision),
				desiredAnnotation:  strconv.Itoa(int(*d.Spec.Replicas)),
				maxAnnotation:      strconv.Itoa(int(*d.Spec.Replicas + limits.surge)),
			},
		},
		Spec: apps.ReplicaSetSpec{
			Replicas: ptr.To(size),
			Selector: &metav1.LabelSelector{MatchLabels: maps.Clone(pods.Labels)},
			Template: pods,
		},
		Status: apps.ReplicaSetStatus{
			ObservedGeneration: 1, Replicas: size, FullyLabeledReplicas: size, ReadyReplicas: available,
			AvailableReplicas: available, TerminatingReplicas: ptr.To[int32](0),
		},
	}
}

// settled is the Deployment of 10 Pods at version 2, with version 1 empty behind it.
// Ceiling 13, floor 8.
func settled() Observed {
	d := rollingDeployment(10, intstr.FromString("25%"), intstr.FromString("25%"))
	return Observed{Deployment: d, ReplicaSets: []*apps.ReplicaSet{replicaSet(d, 1, 1, 0, 0), replicaSet(d, 2, 2, 10, 10)}}
}

// rollTo gives the Deployment the template of another version.
func rollTo(o *Observed, version int) {
	o.Deployment.Spec.Template = template(version)
	o.Deployment.Generation++
}

// midway is a rollout from version 2 to 3: old 8 available, new 5 not yet.
func midway() Observed {
	o := settled()
	rollTo(&o, 3)
	d := o.Deployment
	d.Annotations[revisionAnnotation] = "3"
	o.ReplicaSets[1] = replicaSet(d, 2, 2, 8, 8)
	o.ReplicaSets = append(o.ReplicaSets, replicaSet(d, 3, 3, 5, 0))
	d.Status = apps.DeploymentStatus{
		ObservedGeneration: 3, Replicas: 13, UpdatedReplicas: 5, ReadyReplicas: 8, AvailableReplicas: 8, UnavailableReplicas: 5,
		TerminatingReplicas: ptr.To[int32](0),
		Conditions: []apps.DeploymentCondition{
			isAvailable(time.Hour),
			progressing(v1.ConditionTrue, "ReplicaSetUpdated", `ReplicaSet "web-v3" is progressing.`, time.Minute),
		},
	}
	return o
}

func scaleTo(o *Observed, replicas int32) {
	o.Deployment.Spec.Replicas = ptr.To(replicas)
	o.Deployment.Generation++
}

// newReplicaSet is what a plan creates for the Deployment's template.
func newReplicaSet(d *apps.Deployment, size int32, annotations map[string]string) *apps.ReplicaSet {
	hash := templateHash(d.Spec.Template, d.Status.CollisionCount)
	labels := map[string]string{"app": "web", hashLabel: hash}
	pods := *d.Spec.Template.DeepCopy()
	pods.Labels = labels
	return &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-" + hash, Namespace: "default", Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d",
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: apps.ReplicaSetSpec{
			Replicas: ptr.To(size), MinReadySeconds: d.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pods,
		},
	}
}

func stamps(revision string, desired, ceiling int) map[string]string {
	return map[string]string{
		revisionAnnotation: revision, desiredAnnotation: strconv.Itoa(desired), maxAnnotation: strconv.Itoa(ceiling),
	}
}

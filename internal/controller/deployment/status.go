package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Reasons of conditions, Kubernetes' names. kubectl rollout status reads them.
const (
	reasonUpdated      = "ReplicaSetUpdated"
	reasonCreateError  = "ReplicaSetCreateError"
	reasonCreated      = "NewReplicaSetCreated"
	reasonFound        = "FoundNewReplicaSet"
	reasonDone         = "NewReplicaSetAvailable"
	reasonTimedOut     = "ProgressDeadlineExceeded"
	reasonPaused       = "DeploymentPaused"
	reasonResumed      = "DeploymentResumed"
	reasonAvailable    = "MinimumReplicasAvailable"
	reasonNotAvailable = "MinimumReplicasUnavailable"
)

// baseStatus is the status that any plan has to tell: the counts of what was
// observed and whether the floor is held.
func (r *rollout) baseStatus() apps.DeploymentStatus {
	status := apps.DeploymentStatus{
		ObservedGeneration:  r.d.Generation,
		CollisionCount:      r.d.Status.CollisionCount,
		TerminatingReplicas: r.terminating(),
		Conditions:          r.conditions,
	}
	var total int32
	for _, f := range r.all() {
		total += f.replicas
		status.Replicas += f.rs.Status.Replicas
		status.ReadyReplicas += f.rs.Status.ReadyReplicas
		status.AvailableReplicas += f.rs.Status.AvailableReplicas
	}
	if r.current != nil {
		status.UpdatedReplicas = r.current.rs.Status.Replicas
	}
	// Negative while Pods that are available are on their way out.
	status.UnavailableReplicas = max(0, total-status.AvailableReplicas)
	if status.AvailableReplicas >= r.floor() {
		r.set(&status, apps.DeploymentAvailable, v1.ConditionTrue, reasonAvailable, "Deployment has minimum availability.")
	} else {
		r.set(&status, apps.DeploymentAvailable, v1.ConditionFalse, reasonNotAvailable, "Deployment does not have minimum availability.")
	}
	return status
}

// terminating sums the Pods that are being deleted. It is unknown when a
// ReplicaSet that was worked on does not tell.
func (r *rollout) terminating() *int32 {
	var sum int32
	for _, f := range r.all() {
		switch reported := f.rs.Status.TerminatingReplicas; {
		case reported != nil:
			sum += *reported
		case f.rs.Status.ObservedGeneration != 0:
			return nil
		}
	}
	return &sum
}

// scaledStatus is the status after a change of size. If the template changed with
// it, the rollout begins only in the next plan, and the new generation appears
// with that one's conditions.
func (r *rollout) scaledStatus() apps.DeploymentStatus {
	status := r.baseStatus()
	if r.current == nil {
		status.ObservedGeneration = r.d.Status.ObservedGeneration
	}
	return status
}

// rolloutStatus is the base status and how the rollout gets on.
func (r *rollout) rolloutStatus() apps.DeploymentStatus {
	status := r.baseStatus()
	if r.hasDeadline() {
		r.judgeProgress(&status)
	} else {
		status.Conditions = without(status.Conditions, apps.DeploymentProgressing)
	}
	if failure := r.replicaFailure(); failure != nil {
		setCondition(&status, *failure)
	} else {
		status.Conditions = without(status.Conditions, apps.DeploymentReplicaFailure)
	}
	return status
}

// judgeProgress sets the condition Progressing by comparing with the status last
// written. A rollout that is complete is not judged again: its Pods may come and go.
func (r *rollout) judgeProgress(status *apps.DeploymentStatus) {
	now := find(status.Conditions, apps.DeploymentProgressing)
	done := now != nil && now.Reason == reasonDone
	if done && r.current != nil && status.Replicas == status.UpdatedReplicas {
		return
	}
	subject := fmt.Sprintf("Deployment %q", r.d.Name)
	if r.current != nil {
		subject = fmt.Sprintf("ReplicaSet %q", r.current.rs.Name)
	}
	// A rollout that begins without a ReplicaSet (Recreate, while old Pods end) has
	// nothing else to take the verdict on the one before away.
	begins := r.current == nil && now != nil && (done || now.Reason == reasonTimedOut)
	switch {
	case r.isComplete(*status):
		r.set(status, apps.DeploymentProgressing, v1.ConditionTrue, reasonDone, subject+" has successfully progressed.")
	case begins || progressed(r.d.Status, *status):
		r.renew(status, reasonUpdated, subject+" is progressing.")
	case r.isTimedOut(now):
		r.set(status, apps.DeploymentProgressing, v1.ConditionFalse, reasonTimedOut, subject+" has timed out progressing.")
	}
}

// isComplete says whether a status shows all wanted Pods updated and available,
// and no others.
func (r *rollout) isComplete(status apps.DeploymentStatus) bool {
	return status.UpdatedReplicas == r.want && status.Replicas == r.want && status.AvailableReplicas == r.want &&
		status.ObservedGeneration >= r.d.Generation
}

// progressed says whether Pods were updated, became ready or available, or old
// ones went.
func progressed(old, next apps.DeploymentStatus) bool {
	return next.UpdatedReplicas > old.UpdatedReplicas ||
		next.Replicas-next.UpdatedReplicas < old.Replicas-old.UpdatedReplicas ||
		next.ReadyReplicas > old.ReadyReplicas ||
		next.AvailableReplicas > old.AvailableReplicas
}

func (r *rollout) hasDeadline() bool {
	seconds := r.d.Spec.ProgressDeadlineSeconds
	return seconds != nil && *seconds != math.MaxInt32
}

func (r *rollout) isTimedOut(progressing *apps.DeploymentCondition) bool {
	if progressing == nil || progressing.Reason == reasonDone {
		return false
	}
	return progressing.Reason == reasonTimedOut || !r.moment.Before(r.deadlineOf(*progressing))
}

// deadlineOf is when a rollout that has not got on since has failed, however the wall
// clock was set meanwhile. Times in conditions are whole seconds: one second later the
// deadline is over for certain.
func (r *rollout) deadlineOf(progressing apps.DeploymentCondition) time.Time {
	since := r.updated.Of(progressing.LastUpdateTime.Time)
	return since.Add(time.Duration(*r.d.Spec.ProgressDeadlineSeconds)*time.Second + time.Second)
}

// deadline is when to look whether the rollout got on; zero if that is no matter.
func (r *rollout) deadline(status apps.DeploymentStatus) time.Time {
	progressing := find(status.Conditions, apps.DeploymentProgressing)
	if !r.hasDeadline() || progressing == nil || r.isComplete(status) ||
		progressing.Reason == reasonDone || progressing.Reason == reasonTimedOut {
		return time.Time{}
	}
	return r.deadlineOf(*progressing)
}

// markPaused notes pause and resume, so that time spent paused does not count
// against the deadline. An exceeded deadline stays.
func (r *rollout) markPaused() {
	progressing := find(r.conditions, apps.DeploymentProgressing)
	if !r.hasDeadline() || (progressing != nil && progressing.Reason == reasonTimedOut) {
		return
	}
	noted := progressing != nil && progressing.Reason == reasonPaused
	switch {
	case r.d.Spec.Paused && !noted:
		r.mark(v1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !r.d.Spec.Paused && noted:
		r.mark(v1.ConditionUnknown, reasonResumed, "Deployment is resumed")
	}
}

// markCreated notes that a rollout begins with a ReplicaSet of its own.
func (r *rollout) markCreated() {
	if r.hasDeadline() {
		r.mark(v1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new replica set %q", r.current.rs.Name))
	}
}

// markFound notes that a rollout begins with a ReplicaSet that exists: one of an
// earlier revision, or one from before anybody asked for progress.
func (r *rollout) markFound() {
	if !r.hasDeadline() || r.d.Spec.Paused {
		return
	}
	recorded := r.d.Annotations[revisionAnnotation]
	if begins := recorded != "" && recorded != r.revision; begins || find(r.conditions, apps.DeploymentProgressing) == nil {
		status := apps.DeploymentStatus{Conditions: r.conditions}
		r.renew(&status, reasonFound, fmt.Sprintf("Found new replica set %q", r.current.rs.Name))
		r.conditions = status.Conditions
	}
}

// mark sets Progressing in what the plan starts from.
func (r *rollout) mark(value v1.ConditionStatus, reason, message string) {
	status := apps.DeploymentStatus{Conditions: r.conditions}
	r.set(&status, apps.DeploymentProgressing, value, reason, message)
	r.conditions = status.Conditions
}

// replicaFailure is the condition of the new ReplicaSet, or else of an old one,
// that its Pods are refused.
func (r *rollout) replicaFailure() *apps.DeploymentCondition {
	for _, f := range r.all() {
		for _, c := range f.rs.Status.Conditions {
			if c.Type == apps.ReplicaSetReplicaFailure {
				return &apps.DeploymentCondition{
					Type: apps.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastTransitionTime: c.LastTransitionTime, LastUpdateTime: c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// planCollision answers a name that another ReplicaSet has: with one more
// collision counted the next plan's name is another.
func (r *rollout) planCollision() Plan {
	status := r.d.Status.DeepCopy()
	status.CollisionCount = ptr.To(ptr.Deref(status.CollisionCount, 0) + 1)
	return Plan{Status: status}
}

// planFailure says that the ReplicaSet of the rollout was refused.
func (r *rollout) planFailure(failure Failure) Plan {
	if r.hasDeadline() {
		r.mark(v1.ConditionFalse, reasonCreateError,
			fmt.Sprintf("Failed to create new replica set %q: %s", failure.ReplicaSet, failure.Message))
	}
	return r.finish(r.baseStatus())
}

// set sets a condition as of now; see setCondition.
func (r *rollout) set(status *apps.DeploymentStatus, kind apps.DeploymentConditionType, value v1.ConditionStatus, reason, message string) {
	setCondition(status, apps.DeploymentCondition{
		Type: kind, Status: value, Reason: reason, Message: message, LastUpdateTime: r.now, LastTransitionTime: r.now,
	})
}

// renew sets Progressing to True even if it has that reason already: its time is
// what the deadline counts from.
func (r *rollout) renew(status *apps.DeploymentStatus, reason, message string) {
	next := apps.DeploymentCondition{
		Type: apps.DeploymentProgressing, Status: v1.ConditionTrue, Reason: reason, Message: message,
		LastUpdateTime: r.now, LastTransitionTime: r.now,
	}
	if was := find(status.Conditions, next.Type); was != nil && was.Status == next.Status {
		next.LastTransitionTime = was.LastTransitionTime
	}
	status.Conditions = append(without(status.Conditions, next.Type), next)
}

// setCondition sets a condition, last in the list. One that already has that status
// and reason stays as it is, message and times included; the time of transition
// only moves with the status.
func setCondition(status *apps.DeploymentStatus, next apps.DeploymentCondition) {
	if was := find(status.Conditions, next.Type); was != nil && was.Status == next.Status {
		if was.Reason == next.Reason {
			return
		}
		next.LastTransitionTime = was.LastTransitionTime
	}
	status.Conditions = append(without(status.Conditions, next.Type), next)
}

func find(conditions []apps.DeploymentCondition, kind apps.DeploymentConditionType) *apps.DeploymentCondition {
	if i := slices.IndexFunc(conditions, ofType(kind)); i >= 0 {
		return &conditions[i]
	}
	return nil
}

// without returns a new list.
func without(conditions []apps.DeploymentCondition, kind apps.DeploymentConditionType) []apps.DeploymentCondition {
	return slices.DeleteFunc(slices.Clone(conditions), ofType(kind))
}

func ofType(kind apps.DeploymentConditionType) func(apps.DeploymentCondition) bool {
	return func(c apps.DeploymentCondition) bool { return c.Type == kind }
}

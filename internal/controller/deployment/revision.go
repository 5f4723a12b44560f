package deployment

import (
	"strconv"
	"strings"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// Annotations, Kubernetes' names. kubectl rollout reads them.
const (
	revisionAnnotation = "deployment.kubernetes.io/revision"
	historyAnnotation  = "deployment.kubernetes.io/revision-history"
	desiredAnnotation  = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation      = "deployment.kubernetes.io/max-replicas"
	causeAnnotation    = "kubernetes.io/change-cause"
)

// inheritedAnnotation, on a ReplicaSet, is the change cause that was already on
// the Deployment when the ReplicaSet's rollout began: the cause of the revision
// before, not of this one.
const inheritedAnnotation = "mend.local/inherited-change-cause"

// maxHistory bounds the revision history of a ReplicaSet, in characters.
const maxHistory = 2000

// isOwn says whether an annotation is about the object it stands on and is not
// copied from a Deployment to its new ReplicaSet.
func isOwn(key string) bool {
	switch key {
	case v1.LastAppliedConfigAnnotation, revisionAnnotation, historyAnnotation, desiredAnnotation, maxAnnotation,
		apps.DeprecatedRollbackTo, inheritedAnnotation:
		return true
	}
	return false
}

// revisionOf is a ReplicaSet's revision, 0 if it has none; false if it is not a
// number.
func revisionOf(rs *apps.ReplicaSet) (int64, bool) {
	text := rs.Annotations[revisionAnnotation]
	if text == "" {
		return 0, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// recordedRevision is the Deployment's own revision, 0 if it has none: without it
// a Deployment whose ReplicaSets are all gone (paused, and no history kept) would
// count from 1 again, and one whose newest is gone would go back to the number of
// an older one. One that was never worked on brought its annotation along
// from another cluster, where it means something else.
func (r *rollout) recordedRevision() int64 {
	n, err := strconv.ParseInt(r.d.Annotations[revisionAnnotation], 10, 64)
	if err != nil || r.d.Status.ObservedGeneration == 0 {
		return 0
	}
	return n
}

// latestOld is the old ReplicaSet of the highest revision; nil if there is none.
func (r *rollout) latestOld() (latest *apps.ReplicaSet, revision int64) {
	for _, f := range r.old {
		n, ok := revisionOf(f.rs)
		if ok && (latest == nil || n > revision) {
			latest, revision = f.rs, n
		}
	}
	return latest, revision
}

// markCurrent brings the new ReplicaSet's annotations, revision and
// minReadySeconds up to the Deployment's, and the Deployment's revision to the
// ReplicaSet's.
func (r *rollout) markCurrent() {
	if r.current == nil {
		return
	}
	r.numberCurrent()
	r.copyAnnotations()
	r.current.minReady = r.d.Spec.MinReadySeconds
	r.revision = r.current.annotation(revisionAnnotation)
	r.markFound()
}

// numberCurrent gives the new ReplicaSet a revision above all old ones' and not
// below the Deployment's, unless it has one: revisions 1, 2, 3 and the template of 1
// again make it 4, also when the ReplicaSet of 3 is gone. What it was before goes
// into its history.
func (r *rollout) numberCurrent() {
	_, highest := r.latestOld()
	had, ok := revisionOf(r.current.rs)
	if recorded := r.recordedRevision(); recorded > had {
		highest = max(highest, recorded)
	}
	if !ok || had > highest {
		return
	}
	r.current.annotate(revisionAnnotation, strconv.FormatInt(highest+1, 10))
	if text := r.current.rs.Annotations[revisionAnnotation]; text != "" {
		r.current.annotate(historyAnnotation, appendHistory(r.current.rs.Annotations[historyAnnotation], text))
	}
}

// appendHistory adds a revision to a history like "1,3", dropping the oldest ones
// that no longer fit.
func appendHistory(history, revision string) string {
	if history == "" {
		return revision
	}
	history += "," + revision
	for len(history) > maxHistory {
		_, history, _ = strings.Cut(history, ",")
	}
	return history
}

// copyAnnotations copies the Deployment's annotations to the new ReplicaSet, where
// rollout history looks for the change cause.
func (r *rollout) copyAnnotations() {
	inherited := r.inheritedCause()
	for key, value := range r.d.Annotations {
		switch {
		case isOwn(key), r.current.annotation(key) == value:
		case key == causeAnnotation && value == inherited && value != "":
			if r.current.annotation(inheritedAnnotation) != value {
				r.current.annotate(inheritedAnnotation, value)
			}
		default:
			r.current.annotate(key, value)
		}
	}
}

// inheritedCause is the change cause that does not belong to the new ReplicaSet,
// although the Deployment carries it. In the plan that begins a rollout it is the
// cause of the revision before; from then on it is on the ReplicaSet.
//
//	revision 1 "image 1.0"; set image      → revision 2 <none>, inherited "image 1.0"
//	then annotate "image 2.0"              → revision 2 "image 2.0"
func (r *rollout) inheritedCause() string {
	if _, begins := r.current.annotations[revisionAnnotation]; !begins {
		return r.current.rs.Annotations[inheritedAnnotation]
	}
	before, _ := r.latestOld()
	if before == nil {
		return ""
	}
	if cause := before.Annotations[causeAnnotation]; cause != "" {
		return cause
	}
	return before.Annotations[inheritedAnnotation]
}

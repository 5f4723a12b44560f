package deployment

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

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
	if got := appendHistory(strings.Repeat("1", 1998), "2"); len(got) != maxHistory {
		t.Errorf("a history that just fits has %d characters", len(got))
	}
	long := strings.Repeat("1234567,", 249) + "1234567" // 1999 characters
	if got := appendHistory(long, "1"); len(got) > maxHistory || !strings.HasSuffix(got, ",1234567,1") || !strings.HasPrefix(got, "1234567,") {
		t.Errorf("history of %d characters: %s…", len(got), got[:30])
	}
}

func TestTheRevisionBeforeIsTheHighestReadableOne(t *testing.T) {
	odd, plain := replicaSet(settled().Deployment, 4, 0, 0, 0), replicaSet(settled().Deployment, 5, 0, 0, 0)
	odd.Annotations = map[string]string{revisionAnnotation: "ninth", causeAnnotation: "odd"}
	plain.Annotations = map[string]string{causeAnnotation: "plain"}
	first := func(cause string, sets ...*apps.ReplicaSet) map[string]string {
		d := settled().Deployment
		d.Annotations[causeAnnotation] = cause
		o := Observed{Deployment: d, ReplicaSets: sets}
		rollTo(&o, 6)
		return plan(o, start).Actions[0].(Create).ReplicaSet.Annotations
	}
	inherits, own := stamps("3", 10, 13), stamps("3", 10, 13) // the Deployment was at 2
	inherits[inheritedAnnotation], own[causeAnnotation] = "plain", "odd"
	if diff := cmp.Diff(inherits, first("plain", odd, plain)); diff != "" {
		t.Errorf("after one of no revision (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(own, first("odd", odd)); diff != "" {
		t.Errorf("after one of an unreadable revision (-want +got):\n%s", diff)
	}
}

// The simulator found a paused Deployment without history that was rolled to a third
// template and back to its first: the ReplicaSet of the second had been cleaned up,
// and revision 2 was followed by 1.
func TestRevisionsGrowWhenTheNewestReplicaSetIsGone(t *testing.T) {
	o := settled()
	o.Deployment.Annotations[revisionAnnotation] = "7"
	p := plan(o, start)
	if len(p.Actions) != 1 || p.Revision != "8" {
		t.Fatalf("revision %q, actions %+v, want 8", p.Revision, p.Actions)
	}
	want := map[string]string{revisionAnnotation: "8", historyAnnotation: "2"}
	if diff := cmp.Diff(want, p.Actions[0].(Update).Annotations); diff != "" {
		t.Errorf("the ReplicaSet's annotations (-want +got):\n%s", diff)
	}
}

// The simulator found a paused Deployment without history that counted from 1
// again: its last ReplicaSet had been cleaned up.
func TestRevisionsGrowWhenNoReplicaSetIsLeft(t *testing.T) {
	first := func(observed int64) string {
		d := settled().Deployment
		d.Status.ObservedGeneration = observed
		d.Annotations = map[string]string{revisionAnnotation: "7"}
		return plan(Observed{Deployment: d}, start).Actions[0].(Create).ReplicaSet.Annotations[revisionAnnotation]
	}
	if got := first(2); got != "8" {
		t.Errorf("the next revision is %q, want 8", got)
	}
	if got := first(0); got != "1" {
		t.Errorf("a Deployment that brings revision 7 along begins with %q, want 1", got)
	}
}

package podgc

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// pod runs on node n1 since an hour; a test names what is special.
func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Generation: 3, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func deleted(grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, &grace
	}
}

func unbound(p *corev1.Pod) { p.Spec.NodeName = "" }

func ended(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func created(at time.Time) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(at) }
}

var (
	failed     = &corev1.PodStatus{Phase: corev1.PodFailed, ObservedGeneration: 3}
	disruption = corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: 3,
		Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists", LastTransitionTime: metav1.NewTime(now),
	}
	disrupted = &corev1.PodStatus{Phase: corev1.PodFailed, ObservedGeneration: 3, Conditions: []corev1.PodCondition{disruption}}
)

func TestPlanNode(t *testing.T) {
	const gone, outOfService = "node no longer exists", "its node is out of service"
	tests := []struct {
		name string
		in   NodeObserved
		want Plan
	}{
		{"the Pods of a node that is there are its own", NodeObserved{State: NodeThere, Pods: []*corev1.Pod{pod("a")}}, Plan{}},
		{"a missing node is waited for", NodeObserved{State: NodeMissing, MissingSince: now.Add(-10 * time.Second), Pods: []*corev1.Pod{pod("a")}},
			Plan{Recheck: now.Add(30 * time.Second)}},
		{"a missing node without Pods concerns nobody", NodeObserved{State: NodeMissing, MissingSince: now}, Plan{}},
		{"the Pods of a gone node fail and go, oldest first",
			NodeObserved{State: NodeGone, Pods: []*corev1.Pod{pod("b"), pod("a"), pod("c", created(now.Add(-2*time.Hour)))}}, Plan{Actions: []End{
				{Pod: pod("c", created(now.Add(-2*time.Hour))), Status: disrupted, Why: gone},
				{Pod: pod("a"), Status: disrupted, Why: gone},
				{Pod: pod("b"), Status: disrupted, Why: gone},
			}}},
		{"one that had ended keeps its status", NodeObserved{State: NodeGone, Pods: []*corev1.Pod{pod("a", ended(corev1.PodSucceeded))}}, Plan{Actions: []End{
			{Pod: pod("a", ended(corev1.PodSucceeded)), Why: gone},
		}}},
		{"one in its grace does not wait for a node that is gone", NodeObserved{State: NodeGone, Pods: []*corev1.Pod{pod("a", deleted(30))}}, Plan{Actions: []End{
			{Pod: pod("a", deleted(30)), Status: disrupted, Why: gone},
		}}},
		{"one that is force deleted already, and held by a finalizer, is marked",
			NodeObserved{State: NodeGone, Pods: []*corev1.Pod{pod("a", deleted(0))}}, Plan{Actions: []End{{Pod: pod("a", deleted(0)), Status: disrupted, Why: gone}}}},
		{"once marked it needs nothing more", NodeObserved{State: NodeGone, Pods: []*corev1.Pod{pod("a", deleted(0), ended(corev1.PodFailed))}}, Plan{}},
		{"out of service: only what is being deleted goes", NodeObserved{State: NodeOutOfService, Pods: []*corev1.Pod{pod("a"), pod("b", deleted(30))}}, Plan{Actions: []End{
			{Pod: pod("b", deleted(30)), Status: failed, Why: outOfService},
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, planNode(tt.in, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanUnbound(t *testing.T) {
	waiting := pod("a", unbound, deleted(30))
	tests := []struct {
		name string
		in   *corev1.Pod
		want Plan
	}{
		{"deleted before it was bound: nobody else will end it", waiting, Plan{Actions: []End{
			{Pod: waiting, Status: failed, Why: "it is deleted and was never bound to a node"},
		}}},
		{"not deleted: the scheduler's", pod("a", unbound), Plan{}},
		{"bound: its node's", pod("a", deleted(30)), Plan{}},
		{"marked and force deleted already", pod("a", unbound, deleted(0), ended(corev1.PodFailed)), Plan{}},
		{"gone", nil, Plan{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, planUnbound(tt.in, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAConditionKeepsTheTimeOfItsLastChange(t *testing.T) {
	earlier := disruption
	earlier.LastTransitionTime, earlier.Message = metav1.NewTime(now.Add(-time.Minute)), "other"
	p := pod("a", func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{earlier} })
	got := planNode(NodeObserved{State: NodeGone, Pods: []*corev1.Pod{p}}, now).Actions[0].Status.Conditions
	want := disruption
	want.LastTransitionTime = earlier.LastTransitionTime
	if diff := cmp.Diff([]corev1.PodCondition{want}, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if p.Status.Conditions[0].Message != "other" {
		t.Error("the plan changed its input")
	}
}

func TestOfTooManyEndedPodsTheEvictedGoFirstThenTheOldest(t *testing.T) {
	pods := []*corev1.Pod{
		pod("running"), pod("leaving", ended(corev1.PodFailed), deleted(30)),
		pod("old", ended(corev1.PodSucceeded), created(now.Add(-3*time.Hour))),
		pod("evicted", ended(corev1.PodFailed), func(p *corev1.Pod) { p.Status.Reason = "Evicted" }),
	}
	for i := range endedLimit {
		pods = append(pods, pod(fmt.Sprint(i), ended(corev1.PodSucceeded)))
	}
	var got []string
	for _, a := range planEnded(pods, now).Actions {
		if a.Status != nil {
			t.Errorf("%s had ended by itself and keeps its status", a.Pod.Name)
		}
		got = append(got, a.Pod.Name)
	}
	if diff := cmp.Diff([]string{"evicted", "old"}, got); diff != "" {
		t.Errorf("go (-want +got):\n%s", diff)
	}
	if p := planEnded(pods[3:len(pods)-1], now); len(p.Actions) > 0 {
		t.Errorf("exactly the limit is not too many: %d go", len(p.Actions))
	}
}

func TestPlanIsTheSameWhateverTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pods []*corev1.Pod
		for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
			pods = append(pods, pod(fmt.Sprint(i),
				created(now.Add(-time.Duration(rapid.IntRange(0, 2).Draw(t, "age"))*time.Hour)),
				ended(rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodFailed, corev1.PodPending}).Draw(t, "phase")),
				func(p *corev1.Pod) {
					if rapid.Bool().Draw(t, "deleted") {
						deleted(rapid.SampledFrom([]int64{0, 30}).Draw(t, "grace"))(p)
					}
				}))
		}
		shuffled := rapid.Permutation(pods).Draw(t, "order")
		for _, state := range []NodeState{NodeThere, NodeMissing, NodeGone, NodeOutOfService} {
			a, b := planNode(NodeObserved{State: state, Pods: pods}, now), planNode(NodeObserved{State: state, Pods: shuffled}, now)
			if diff := cmp.Diff(a, b); diff != "" {
				t.Fatalf("order matters:\n%s", diff)
			}
			for _, action := range a.Actions {
				if state != NodeGone && action.Pod.DeletionTimestamp == nil {
					t.Fatalf("%s goes though its node is there and nobody deleted it", action.Pod.Name)
				}
			}
		}
	})
}

package replicaset

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// now is when every plan here is made; the base world's Pods are an hour old.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// settled is a ReplicaSet of 3 whose 3 Pods are ready and whose status says so.
func settled() Observed {
	rs := &apps.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "rs", Generation: 4},
		Spec: apps.ReplicaSetSpec{
			Replicas: ptr.To[int32](3),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "hash": "1"}}},
		},
		Status: status(4, 3, 3, 0),
	}
	return Observed{ReplicaSet: rs, Pods: []*v1.Pod{readyPod("a"), readyPod("b"), readyPod("c")}}
}

// status is one in which all active Pods are fully labelled and available when ready.
func status(generation int64, active, ready, terminating int32) apps.ReplicaSetStatus {
	return apps.ReplicaSetStatus{
		ObservedGeneration: generation, Replicas: active, FullyLabeledReplicas: active,
		ReadyReplicas: ready, AvailableReplicas: ready, TerminatingReplicas: ptr.To(terminating),
	}
}

func readyPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID(name), CreationTimestamp: ago(time.Hour),
			Labels: map[string]string{"app": "web", "hash": "1"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true),
			}},
		},
		Spec: v1.PodSpec{NodeName: "n1"},
		Status: v1.PodStatus{
			Phase:      v1.PodRunning,
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: ago(time.Hour)}},
		},
	}
}

func unready(pod *v1.Pod) { pod.Status.Conditions = nil }

func orphaned(pod *v1.Pod) { pod.OwnerReferences = nil }

func terminating(pod *v1.Pod) { pod.DeletionTimestamp = ptr.To(ago(time.Second)) }

func failed(pod *v1.Pod) { pod.Status.Phase = v1.PodFailed }

func readyFor(d time.Duration) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Status.Conditions[0].LastTransitionTime = ago(d) }
}

var refused = apps.ReplicaSetCondition{
	Type: apps.ReplicaSetReplicaFailure, Status: v1.ConditionTrue, Reason: "FailedCreate",
	Message: "quota", LastTransitionTime: ago(0),
}

func withCondition(s apps.ReplicaSetStatus, c apps.ReplicaSetCondition) *apps.ReplicaSetStatus {
	s.Conditions = []apps.ReplicaSetCondition{c}
	return &s
}

var planCases = map[string]struct {
	world func(o *Observed)
	want  func(o Observed) Plan
}{
	"a settled ReplicaSet needs nothing": {
		world: func(*Observed) {},
		want:  func(Observed) Plan { return Plan{} },
	},
	"a missing Pod is created and the status counts it out": {
		world: func(o *Observed) { o.Pods = o.Pods[:2] },
		want: func(Observed) Plan {
			return Plan{
				Actions: []Action{CreatePods{Count: 1, Why: "1 of 3 Pods missing"}},
				Status:  ptr.To(status(4, 2, 2, 0)),
			}
		},
	},
	"a terminating Pod is replaced at once": {
		world: func(o *Observed) { terminating(o.Pods[0]) },
		want: func(Observed) Plan {
			return Plan{
				Actions: []Action{CreatePods{Count: 1, Why: "1 of 3 Pods missing"}},
				Status:  ptr.To(status(4, 2, 2, 1)),
			}
		},
	},
	"a failed Pod is replaced and stays where it is": {
		world: func(o *Observed) { failed(o.Pods[0]) },
		want: func(Observed) Plan {
			return Plan{
				Actions: []Action{CreatePods{Count: 1, Why: "1 of 3 Pods missing"}},
				Status:  ptr.To(status(4, 2, 2, 0)),
			}
		},
	},
	"of a thousand missing Pods a burst is created": {
		world: func(o *Observed) { o.ReplicaSet.Spec.Replicas = ptr.To[int32](1003) },
		want: func(Observed) Plan {
			return Plan{Actions: []Action{CreatePods{Count: 500, Why: "1000 of 1003 Pods missing"}}}
		},
	},
	"the Pod that is not ready goes first": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.Replicas = ptr.To[int32](2)
			unready(o.Pods[1])
		},
		want: func(o Observed) Plan {
			return Plan{
				Actions: []Action{DeletePods{Pods: []*v1.Pod{o.Pods[1]}, Why: "3 Pods where 2 are wanted"}},
				Status:  ptr.To(status(4, 3, 2, 0)),
			}
		},
	},
	"scaled to zero all Pods go": {
		world: func(o *Observed) { o.ReplicaSet.Spec.Replicas = ptr.To[int32](0) },
		want: func(o Observed) Plan {
			return Plan{Actions: []Action{DeletePods{Pods: o.Pods, Why: "3 Pods where 0 are wanted"}}}
		},
	},
	"an orphan that matches is adopted before anything is counted": {
		world: func(o *Observed) { orphaned(o.Pods[2]) },
		want: func(o Observed) Plan {
			return Plan{Actions: []Action{Adopt{Pod: o.Pods[2], Why: "matches the selector and has no controller"}}}
		},
	},
	"an orphan that is being deleted is left alone": {
		world: func(o *Observed) { orphaned(o.Pods[2]); terminating(o.Pods[2]) },
		want: func(Observed) Plan {
			return Plan{
				Actions: []Action{CreatePods{Count: 1, Why: "1 of 3 Pods missing"}},
				Status:  ptr.To(status(4, 2, 2, 0)),
			}
		},
	},
	"an orphan of other labels is left alone": {
		world: func(o *Observed) {
			other := readyPod("d")
			orphaned(other)
			other.Labels = map[string]string{"app": "db"}
			o.Pods = append(o.Pods, other)
		},
		want: func(Observed) Plan { return Plan{} },
	},
	"a Pod of another controller is left alone": {
		world: func(o *Observed) {
			other := readyPod("d")
			other.OwnerReferences[0].UID = "other"
			o.Pods = append(o.Pods, other)
		},
		want: func(Observed) Plan { return Plan{} },
	},
	"a Pod whose labels were changed is released": {
		world: func(o *Observed) { o.Pods[0].Labels = map[string]string{"app": "debug"} },
		want: func(o Observed) Plan {
			return Plan{Actions: []Action{Release{Pod: o.Pods[0], Why: "no longer matches the selector"}}}
		},
	},
	"a ReplicaSet being deleted neither claims nor creates": {
		world: func(o *Observed) {
			o.ReplicaSet.DeletionTimestamp = ptr.To(ago(time.Second))
			o.Pods[0].Labels = map[string]string{"app": "debug"}
			orphaned(o.Pods[1])
		},
		want: func(Observed) Plan { return Plan{Status: ptr.To(status(4, 1, 1, 0))} },
	},
	"a new generation is acknowledged though nothing else changed": {
		world: func(o *Observed) { o.ReplicaSet.Generation = 5 },
		want:  func(Observed) Plan { return Plan{Status: ptr.To(status(5, 3, 3, 0))} },
	},
	"a Pod without all of the template's labels is not fully labelled": {
		world: func(o *Observed) { delete(o.Pods[0].Labels, "hash") },
		want: func(Observed) Plan {
			s := status(4, 3, 3, 0)
			s.FullyLabeledReplicas = 2
			return Plan{Status: &s}
		},
	},
	"a Pod ready for less than minReadySeconds is not available, and is looked at when it will be": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.MinReadySeconds = 30
			readyFor(10 * time.Second)(o.Pods[0])
			readyFor(12 * time.Second)(o.Pods[1])
		},
		want: func(Observed) Plan {
			s := status(4, 3, 3, 0)
			s.AvailableReplicas = 1
			return Plan{Status: &s, Recheck: now.Add(18 * time.Second)}
		},
	},
	"a ready Pod that requests do not reach is not available, and is looked at when it counts as reached": {
		world: func(o *Observed) {
			readyFor(500 * time.Millisecond)(o.Pods[2])
			o.Unrouted = map[types.UID]bool{"c": true}
		},
		want: func(Observed) Plan {
			fewer := status(4, 3, 3, 0)
			fewer.AvailableReplicas = 2
			return Plan{Status: &fewer, Recheck: now.Add(1500 * time.Millisecond)}
		},
	},
	"a Pod that requests still do not reach after two seconds is available": {
		world: func(o *Observed) {
			readyFor(2 * time.Second)(o.Pods[2])
			o.Unrouted = map[types.UID]bool{"c": true}
		},
		want: func(Observed) Plan { return Plan{} },
	},
	"a Pod ready for exactly minReadySeconds is available": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.MinReadySeconds = 30
			readyFor(30 * time.Second)(o.Pods[0])
		},
		want: func(Observed) Plan { return Plan{} },
	},
	"growth waits for the status interval": {
		world: func(o *Observed) {
			o.ReplicaSet.Status = status(4, 3, 1, 0)
			o.StatusWritten = now.Add(-20 * time.Millisecond)
		},
		want: func(Observed) Plan { return Plan{Recheck: now.Add(30 * time.Millisecond)} },
	},
	"growth is written once the interval is over": {
		world: func(o *Observed) {
			o.ReplicaSet.Status = status(4, 3, 1, 0)
			o.StatusWritten = now.Add(-50 * time.Millisecond)
		},
		want: func(Observed) Plan { return Plan{Status: ptr.To(status(4, 3, 3, 0))} },
	},
	"more Pods, none of them ready, wait too": {
		world: func(o *Observed) {
			unready(o.Pods[2])
			o.ReplicaSet.Status = status(4, 2, 2, 0)
			o.StatusWritten = now.Add(-20 * time.Millisecond)
		},
		want: func(Observed) Plan { return Plan{Recheck: now.Add(30 * time.Millisecond)} },
	},
	"of two reasons to look again the earlier one counts": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.MinReadySeconds = 30
			o.ReplicaSet.Status = status(4, 3, 1, 0)
			readyFor(30*time.Second - 10*time.Millisecond)(o.Pods[0])
			o.StatusWritten = now.Add(-20 * time.Millisecond)
		},
		want: func(Observed) Plan { return Plan{Recheck: now.Add(10 * time.Millisecond)} },
	},
	"a new generation does not wait": {
		world: func(o *Observed) { o.ReplicaSet.Generation, o.StatusWritten = 5, now },
		want:  func(Observed) Plan { return Plan{Status: ptr.To(status(5, 3, 3, 0))} },
	},
	"a Pod that is ready but no longer available does not wait": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.MinReadySeconds = 7200
			o.StatusWritten = now
		},
		want: func(Observed) Plan {
			s := status(4, 3, 3, 0)
			s.AvailableReplicas = 0
			return Plan{Status: &s, Recheck: now.Add(time.Hour)}
		},
	},
	"a refusal does not wait": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.Replicas = ptr.To[int32](4)
			o.Failure, o.StatusWritten = &Failure{Message: "quota"}, now
		},
		want: func(Observed) Plan { return Plan{Status: withCondition(status(4, 3, 3, 0), refused)} },
	},
	"a lost Pod is reported without waiting": {
		world: func(o *Observed) {
			unready(o.Pods[0])
			o.StatusWritten = now.Add(-time.Millisecond)
		},
		want: func(Observed) Plan { return Plan{Status: ptr.To(status(4, 3, 2, 0))} },
	},
	"a refused create becomes a condition": {
		world: func(o *Observed) {
			o.Pods = o.Pods[:1]
			o.Failure = &Failure{Message: "quota"}
		},
		want: func(Observed) Plan { return Plan{Status: withCondition(status(4, 1, 1, 0), refused)} },
	},
	"a refused delete becomes a condition": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.Replicas = ptr.To[int32](1)
			o.Failure = &Failure{Message: "unable to delete pods: denied"}
		},
		want: func(Observed) Plan {
			c := refused
			c.Reason, c.Message = "FailedDelete", "unable to delete pods: denied"
			return Plan{Status: withCondition(status(4, 3, 3, 0), c)}
		},
	},
	"a second refusal leaves the first one's message": {
		world: func(o *Observed) {
			o.Pods = o.Pods[:1]
			o.ReplicaSet.Status = *withCondition(status(4, 1, 1, 0), refused)
			o.Failure = &Failure{Message: "still quota"}
		},
		want: func(Observed) Plan { return Plan{} },
	},
	"the condition goes with the retry that is about to succeed": {
		world: func(o *Observed) {
			o.Pods = o.Pods[:2]
			o.ReplicaSet.Status = *withCondition(status(4, 2, 2, 0), refused)
		},
		want: func(Observed) Plan {
			s := status(4, 2, 2, 0)
			s.Conditions = []apps.ReplicaSetCondition{}
			return Plan{
				Actions: []Action{CreatePods{Count: 1, Why: "1 of 3 Pods missing"}},
				Status:  &s,
			}
		},
	},
	"an empty selector selects nothing": {
		world: func(o *Observed) {
			o.ReplicaSet.Spec.Selector = &metav1.LabelSelector{}
			orphaned(o.Pods[0])
		},
		want: func(Observed) Plan { return Plan{} },
	},
}

func TestPlan(t *testing.T) {
	for name, test := range planCases {
		t.Run(name, func(t *testing.T) {
			o := settled()
			test.world(&o)
			if diff := cmp.Diff(test.want(o), plan(o, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func annotate(cost string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Annotations = map[string]string{"controller.kubernetes.io/pod-deletion-cost": cost} }
}
func restarted(n int32) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "web", RestartCount: n}} }
}
func sidecar(n int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "log", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}}
		p.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "log", RestartCount: n}}
	}
}
func initRestarts(p *v1.Pod) {
	p.Spec.InitContainers = []v1.Container{{Name: "once"}}
	p.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "once", RestartCount: 9}}
}
func created(d time.Duration) func(*v1.Pod) { return func(p *v1.Pod) { p.CreationTimestamp = ago(d) } }
func onNode(n string) func(*v1.Pod)         { return func(p *v1.Pod) { p.Spec.NodeName = n } }
func phase(ph v1.PodPhase) func(*v1.Pod)    { return func(p *v1.Pod) { p.Status.Phase = ph } }
func neverReady(p *v1.Pod)                  { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} }
func same(*v1.Pod)                          {}

// In each case the first Pod (UID "z") must go before the second (UID "a"),
// against the order of their UIDs unless the case is about it.
var rankCases = map[string]struct{ first, second func(*v1.Pod) }{
	"not on a node before on one":                    {onNode(""), unready},
	"Pending before Running":                         {phase(v1.PodPending), unready},
	"Pending before Unknown":                         {phase(v1.PodPending), phase(v1.PodUnknown)},
	"Unknown before Running":                         {phase(v1.PodUnknown), unready},
	"not ready before ready":                         {unready, annotate("-5")},
	"lower deletion cost first":                      {annotate("-5"), annotate("3")},
	"no deletion cost is 0":                          {same, annotate("1")},
	"an unreadable deletion cost is 0":               {annotate("+7"), annotate("1")},
	"deletion cost before node":                      {annotate("1"), chain(annotate("2"), onNode("crowded"))},
	"the crowded node first":                         {onNode("crowded"), readyFor(time.Second)},
	"ready for less time first":                      {readyFor(time.Minute), restarted(9)},
	"ready without a time before ready with one":     {neverReady, readyFor(time.Second)},
	"more restarts first":                            {restarted(3), chain(restarted(2), created(time.Second))},
	"more restarts of a sidecar first":               {sidecar(1), created(time.Second)},
	"restarts of init containers do not count":       {chain(initRestarts, created(time.Minute)), same},
	"younger first":                                  {created(time.Minute), same},
	"without creation time first":                    {func(p *v1.Pod) { p.CreationTimestamp = metav1.Time{} }, created(time.Second)},
	"clearly younger beats the order of UIDs":        {readyFor(5 * time.Second), readyFor(10 * time.Second)},
	"restarts of a container before its sidecar's":   {restarted(1), sidecar(5)},
	"a Pod from the future is younger than any":      {created(-time.Minute), created(time.Second)},
	"readiness from the future is shorter than any":  {readyFor(-time.Minute), readyFor(time.Second)},
	"not ready Pods are not ranked by readiness":     {chain(unready, restarted(1)), unready},
	"Pods on a node without others go last":          {same, onNode("lonely")},
	"an unscheduled Pod though its cost is high":     {chain(onNode(""), annotate("100")), annotate("-100")},
	"a Pod never ready though it is the older":       {chain(unready, created(48*time.Hour)), created(time.Second)},
	"a ready Pod of low cost after one not ready":    {chain(unready, annotate("100")), annotate("-100")},
	"equal in all: the one created later":            {created(30 * time.Minute), created(70 * time.Minute)},
	"a younger Pod though it was restarted as often": {chain(restarted(2), created(time.Minute)), restarted(2)},
}

func TestDeletionRank(t *testing.T) {
	world := func(minReadySeconds int32) Observed {
		o := settled()
		o.ReplicaSet.Spec.MinReadySeconds = minReadySeconds
		o.PodsOnNode = map[string]int{"n1": 2, "crowded": 3, "lonely": 1}
		return o
	}
	for name, test := range rankCases {
		t.Run(name, func(t *testing.T) {
			first, second := readyPod("z"), readyPod("a")
			test.first(first)
			test.second(second)
			for _, order := range [][]*v1.Pod{{first, second}, {second, first}} {
				if got := firstToGo(world(0), order, 1, now); got[0].Name != first.Name {
					t.Errorf("Pod %s goes first, want %s", got[0].Name, first.Name)
				}
			}
		})
	}
	t.Run("ready for less than minReadySeconds before available, though it costs more", func(t *testing.T) {
		fresh, available := readyPod("z"), readyPod("a")
		chain(readyFor(4*time.Second), annotate("9"), onNode("lonely"))(fresh)
		chain(readyFor(6*time.Second), onNode("crowded"))(available)
		if got := firstToGo(world(5), []*v1.Pod{available, fresh}, 1, now); got[0] != fresh {
			t.Errorf("Pod %s goes first: a floor of one available Pod would break", got[0].Name)
		}
	})
	t.Run("among Pods of about the same age the UID decides", func(t *testing.T) {
		older, younger := readyPod("a"), readyPod("z")
		readyFor(7 * time.Second)(older)
		readyFor(5 * time.Second)(younger)
		if got := firstToGo(world(0), []*v1.Pod{younger, older}, 1, now); got[0] != older {
			t.Errorf("Pod %s goes first, want a", got[0].Name)
		}
	})
}

func chain(changes ...func(*v1.Pod)) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, change := range changes {
			change(p)
		}
	}
}

func TestSlowStartDoublesAndEnds(t *testing.T) {
	for count, want := range map[int][]int{
		0: nil, 1: {1}, 2: {1, 1}, 3: {1, 2}, 10: {1, 2, 4, 3}, 500: {1, 2, 4, 8, 16, 32, 64, 128, 245},
	} {
		if diff := cmp.Diff(want, slowStart(count)); diff != "" {
			t.Errorf("slowStart(%d) (-want +got):\n%s", count, diff)
		}
	}
}

func TestPodForCopiesTheTemplate(t *testing.T) {
	rs := settled().ReplicaSet
	rs.Spec.Template.Annotations = map[string]string{"note": "x"}
	rs.Spec.Template.Finalizers = []string{"example.com/hold"}
	rs.Spec.Template.Spec = v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "mend.local/web:1.0"}}}
	want := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "web-", Namespace: "default",
			Labels:      map[string]string{"app": "web", "hash": "1"},
			Annotations: map[string]string{"note": "x"},
			Finalizers:  []string{"example.com/hold"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs",
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "web", Image: "mend.local/web:1.0"}}},
	}
	got := podFor(rs)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	got.Labels["app"], got.Spec.Containers[0].Image = "changed", "changed"
	if rs.Spec.Template.Labels["app"] != "web" || rs.Spec.Template.Spec.Containers[0].Image != "mend.local/web:1.0" {
		t.Error("changing the Pod changed the template in the cache")
	}
}

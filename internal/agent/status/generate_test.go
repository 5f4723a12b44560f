package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"mend/internal/agent/podruntime"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)

func stamp(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d).Truncate(time.Second)) }

// input is a Pod with one container, web, that runs.
func input(change ...func(*Input)) Input {
	in := Input{
		Pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "d", UID: "u", Generation: 3},
			Spec:       v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "web", Image: "img:1"}}},
		},
		Runtime: podruntime.State{
			Sandboxes:  []podruntime.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.1.1.1"}}},
			Containers: []podruntime.Container{instance(0)},
		},
		HostIPs: []string{"192.0.2.1"}, Now: now, RuntimeName: "containerd",
		Health: map[string]Health{"c0": {Started: true, Ready: true}, "c1": {Started: true, Ready: true}},
	}
	for _, c := range change {
		c(&in)
	}
	return in
}

func instance(attempt uint32) podruntime.Container {
	return podruntime.Container{ID: "c" + string(rune('0'+attempt)), Name: "web", SandboxID: "s", Attempt: attempt, Phase: podruntime.Running,
		CreatedAt: now.Add(time.Duration(attempt) * time.Second), StartedAt: now.Add(time.Duration(attempt) * time.Second), Image: "img:1", ImageRef: "img@sha256:1"}
}

func ended(c podruntime.Container, code int32) podruntime.Container {
	c.Phase, c.ExitCode, c.Reason, c.FinishedAt = podruntime.Exited, code, "Error", c.StartedAt.Add(time.Second)
	return c
}

func TestARunningPod(t *testing.T) {
	got := Generate(input(func(in *Input) {
		in.Pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
	}))
	yes, condition := true, func(kind v1.PodConditionType) v1.PodCondition {
		return v1.PodCondition{Type: kind, Status: v1.ConditionTrue, ObservedGeneration: 3, LastTransitionTime: stamp(0)}
	}
	requests := v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
	start := stamp(0)
	want := v1.PodStatus{
		ObservedGeneration: 3, Phase: v1.PodRunning, QOSClass: v1.PodQOSBurstable, StartTime: &start,
		HostIP: "192.0.2.1", HostIPs: []v1.HostIP{{IP: "192.0.2.1"}}, PodIP: "10.1.1.1", PodIPs: []v1.PodIP{{IP: "10.1.1.1"}},
		Conditions: []v1.PodCondition{condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")},
		ContainerStatuses: []v1.ContainerStatus{{
			Name: "web", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: stamp(0)}}, Ready: true, Started: &yes,
			Image: "img:1", ImageID: "img@sha256:1", ContainerID: "containerd://c0",
			AllocatedResources: requests, Resources: &v1.ResourceRequirements{Requests: requests},
		}},
		AllocatedResources: requests, Resources: &v1.ResourceRequirements{Requests: requests, Limits: v1.ResourceList{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if again := Generate(input(func(in *Input) { in.Old, in.Now = got, now.Add(time.Hour) })); !Equal(again, func() v1.PodStatus {
		want.AllocatedResources, want.Resources, want.QOSClass = v1.ResourceList{}, &v1.ResourceRequirements{}, v1.PodQOSBestEffort
		want.ContainerStatuses[0].AllocatedResources, want.ContainerStatuses[0].Resources = nil, &v1.ResourceRequirements{}
		return want
	}()) {
		t.Errorf("an hour later the same state gives another status:\n%s", cmp.Diff(want, again))
	}
}

func TestContainerStates(t *testing.T) {
	crash := map[string]Waiting{"web": {Reason: "CrashLoopBackOff", Message: "back-off"}}
	cases := map[string]struct {
		in           Input
		state, last  string
		restarts     int32
		phase        v1.PodPhase
		readyMessage string
	}{
		"not there yet": {input(func(in *Input) { in.Runtime.Containers = nil }), "waiting ContainerCreating", "", 0, v1.PodPending, "containers with unready status: [web]"},
		"being started": {input(func(in *Input) { in.Starting = map[string]bool{"web": true} }), "waiting ContainerCreating", "", 0, v1.PodPending, "containers with unready status: [web]"},
		"ended":         {input(func(in *Input) { in.Runtime.Containers[0] = ended(instance(0), 1) }), "ended 1", "", 0, v1.PodRunning, "containers with unready status: [web]"},
		"in back-off": {input(func(in *Input) { in.Runtime.Containers[0] = ended(instance(0), 1); in.Waiting = crash }),
			"waiting CrashLoopBackOff", "ended 1", 0, v1.PodRunning, "containers with unready status: [web]"},
		"restarted": {input(func(in *Input) {
			in.Runtime.Containers = []podruntime.Container{instance(1), ended(instance(0), 3)}
		}), "running", "ended 3", 1, v1.PodRunning, ""},
		"restarted, the instance before it removed": {input(func(in *Input) {
			in.Old = Generate(input(func(in *Input) { in.Runtime.Containers[0] = ended(instance(0), 3) }))
			in.Runtime.Containers = []podruntime.Container{instance(1)}
		}), "running", "ended 3", 1, v1.PodRunning, ""},
		"gone without a trace": {input(func(in *Input) {
			in.Old = Generate(input())
			in.Runtime.Containers = nil
		}), "waiting ContainerCreating", "ended 137", 1, v1.PodRunning, "containers with unready status: [web]"},
		"unknown": {input(func(in *Input) {
			in.Old = Generate(input())
			in.Runtime.Containers[0].Phase = podruntime.Unknown
		}), "ended 137", "", 1, v1.PodRunning, "containers with unready status: [web]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := Generate(c.in)
			web := s.ContainerStatuses[0]
			if text(web.State) != c.state || text(web.LastTerminationState) != c.last || web.RestartCount != c.restarts || s.Phase != c.phase {
				t.Errorf("state %q, last %q, restarts %d, phase %s", text(web.State), text(web.LastTerminationState), web.RestartCount, s.Phase)
			}
			for _, cond := range s.Conditions {
				if cond.Type == v1.PodReady && (cond.Message != c.readyMessage || (cond.Reason == "ContainersNotReady") != (c.readyMessage != "")) {
					t.Errorf("Ready: %+v", cond)
				}
			}
		})
	}
}

func text(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return "ended " + resource.NewQuantity(int64(s.Terminated.ExitCode), resource.DecimalSI).String()
	case s.Waiting != nil:
		return "waiting " + s.Waiting.Reason
	}
	return ""
}

func TestPhase(t *testing.T) {
	run := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	wait := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
	end := func(code int32) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}
	}
	always, fail, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	cases := []struct {
		policy v1.RestartPolicy
		a, b   v1.ContainerState
		ended  bool
		want   v1.PodPhase
	}{
		{always, run, run, false, v1.PodRunning},
		{always, run, wait, false, v1.PodPending},
		{always, run, end(0), false, v1.PodRunning},
		{always, end(0), end(1), false, v1.PodRunning},
		{always, end(0), end(0), true, v1.PodSucceeded},
		{always, end(0), end(1), true, v1.PodFailed},
		{fail, end(0), end(0), false, v1.PodSucceeded},
		{fail, end(0), end(1), false, v1.PodRunning},
		{never, end(0), end(0), false, v1.PodSucceeded},
		{never, end(0), end(1), false, v1.PodFailed},
		{never, end(1), run, false, v1.PodRunning},
	}
	for _, c := range cases {
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: c.policy, Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}}
		got := Phase(pod, []v1.ContainerStatus{{Name: "a", State: c.a}, {Name: "b", State: c.b}}, c.ended, true)
		if got != c.want {
			t.Errorf("%s, %s and %s, ended %t: %s, want %s", c.policy, text(c.a), text(c.b), c.ended, got, c.want)
		}
	}
}

func TestInitializedCondition(t *testing.T) {
	in := input(func(in *Input) {
		in.Pod.Spec.InitContainers = []v1.Container{{Name: "a", Image: "i"}, {Name: "b", Image: "i"}}
		done := ended(instance(0), 0)
		done.Name, done.ID = "a", "a0"
		in.Runtime.Containers = []podruntime.Container{done}
	})
	for _, c := range Generate(in).Conditions {
		if c.Type == v1.PodInitialized && (c.Status != v1.ConditionFalse || c.Reason != "ContainersNotInitialized" || c.Message != "containers with incomplete status: [b]") {
			t.Errorf("%+v", c)
		}
	}
}

func TestFinalPhaseWaitsForWhatRuns(t *testing.T) {
	in := input(func(in *Input) {
		in.Old.Phase = v1.PodRunning
		in.Verdict = &Verdict{Reason: "DeadlineExceeded", Message: "too long"}
	})
	if s := Generate(in); s.Phase != v1.PodRunning || s.Reason != "" {
		t.Errorf("while it runs: %s %s", s.Phase, s.Reason)
	}
	in.Runtime.Containers[0] = ended(instance(0), 143)
	if s := Generate(in); s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" || s.Message != "too long" {
		t.Errorf("then: %s %s %s", s.Phase, s.Reason, s.Message)
	}
}

func TestReadinessGates(t *testing.T) {
	in := input(func(in *Input) { in.Pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "x/y"}} })
	message := func() string {
		for _, c := range Generate(in).Conditions {
			if c.Type == v1.PodReady {
				return c.Reason + ": " + c.Message
			}
		}
		return ""
	}
	if got, want := message(), `ReadinessGatesNotReady: corresponding condition of pod readiness gate "x/y" does not exist.`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	in.Pod.Status.Conditions = []v1.PodCondition{{Type: "x/y", Status: v1.ConditionTrue}}
	if got := message(); got != ": " {
		t.Errorf("open gate: %q", got)
	}
}

func TestMergeAndPatchLeaveOthersConditions(t *testing.T) {
	have := v1.PodStatus{Conditions: []v1.PodCondition{{Type: "x/y", Status: v1.ConditionTrue}, {Type: v1.PodScheduled, Status: v1.ConditionTrue}}}
	in := input()
	in.Pod.Status = have
	merged := Merge(in.Pod, have, Generate(in))
	raw, err := Patch("u", have, merged)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), `"uid":"u"`) {
		t.Errorf("no precondition in %s", raw)
	}
	before, err := json.Marshal(v1.Pod{Status: have})
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, raw, v1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var pod v1.Pod
	if err := json.Unmarshal(after, &pod); err != nil {
		t.Fatal(err)
	}
	if len(pod.Status.Conditions) != 6 || pod.Status.Phase != v1.PodRunning {
		t.Errorf("%+v", pod.Status)
	}
}

func TestLongMessagesAreCut(t *testing.T) {
	in := input(func(in *Input) {
		c := ended(instance(0), 1)
		c.Message = strings.Repeat("x", 20000)
		in.Runtime.Containers[0] = c
	})
	s := Merge(in.Pod, v1.PodStatus{}, Generate(in))
	if got := len(s.ContainerStatuses[0].State.Terminated.Message); got != 12<<10 {
		t.Errorf("%d bytes", got)
	}
}

// A Pod on the node's network has the node's addresses, one of each family.
func TestAPodOnTheNodesNetwork(t *testing.T) {
	got := Generate(input(func(in *Input) {
		in.Pod.Spec.HostNetwork = true
		in.HostIPs = []string{"192.0.2.1", "2001:db8::1"}
		in.Runtime.Sandboxes[0].IPs = nil
	}))
	want := []v1.PodIP{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}
	if got.PodIP != "192.0.2.1" || !cmp.Equal(got.PodIPs, want) || len(got.HostIPs) != 2 {
		t.Errorf("podIP %s, podIPs %v, hostIPs %v", got.PodIP, got.PodIPs, got.HostIPs)
	}
}

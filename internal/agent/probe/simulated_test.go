package probe_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/agent/probe"
	"mend/internal/runtime/sim"
)

// TestProbesOfSimulatedContainers drives HTTP and exec probes against the
// simulated runtime, through the seams that the agent uses.
func TestProbesOfSimulatedContainers(t *testing.T) {
	ctx := t.Context()
	runtime := sim.New(sim.Options{})
	defer runtime.Stop()
	id, ip := startWeb(t, runtime)
	changes, failures := make(chan probe.Observation, 10), make(chan probe.Observation, 10)
	manager := probe.NewManager(probe.Options{
		Execer: runtime, Dial: runtime.Dial,
		OnChange:  func(o probe.Observation) { changes <- o },
		OnFailure: func(o probe.Observation) { failures <- o },
	})
	defer manager.Stop()
	thresholds := func(handler v1.ProbeHandler) *v1.Probe {
		return &v1.Probe{ProbeHandler: handler, PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1}
	}
	manager.Ensure(probe.Target{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}},
		Container: &v1.Container{
			Name:           "web",
			StartupProbe:   thresholds(v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}),
			ReadinessProbe: thresholds(v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(80)}}),
		},
		ContainerID: id, PodIP: ip, StartedAt: time.Now(),
	})
	if got := receive(t, changes); got.Kind != probe.Startup || got.Result != probe.Success {
		t.Errorf("first change %+v, want startup to succeed", got)
	}
	if got := receive(t, changes); got.Kind != probe.Readiness || got.Result != probe.Success || got.ContainerID != id {
		t.Errorf("second change %+v, want readiness to succeed", got)
	}
	if _, _, err := runtime.ExecSync(ctx, id, []string{"curl", "-X", "POST", "localhost/healthz/fail"}, time.Second); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, failures); got.Message != "Readiness probe failed: HTTP probe failed with statuscode: 503" || got.Reason != probe.ReasonUnhealthy {
		t.Errorf("failure %+v", got)
	}
	if got := receive(t, changes); got.Result != probe.Failure {
		t.Errorf("third change %+v, want readiness to fail", got)
	}
	runtime.Exit(id, 1, "")
	want := `Readiness probe failed: Get "http://` + ip + `:80/healthz": dial tcp ` + ip + `:80: connect: connection refused`
	for {
		got := receive(t, failures)
		if got.Message == want {
			break
		}
		if got.Message != "Readiness probe failed: HTTP probe failed with statuscode: 503" {
			t.Fatalf("failure %q, want %q", got.Message, want)
		}
	}
}

// startWeb runs the sample web image and returns the container's id and its address.
func startWeb(t *testing.T, runtime *sim.Runtime) (id, ip string) {
	t.Helper()
	ctx := t.Context()
	box, err := runtime.RunPodSandbox(ctx, &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "uid"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	status, err := runtime.PodSandboxStatus(ctx, box, false)
	if err != nil {
		t.Fatal(err)
	}
	id, err = runtime.CreateContainer(ctx, box, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"}, Image: &runtimeapi.ImageSpec{Image: "nginx"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.StartContainer(ctx, id); err != nil {
		t.Fatal(err)
	}
	return id, status.Status.Network.Ip
}

func receive(t *testing.T, from chan probe.Observation) probe.Observation {
	t.Helper()
	select {
	case observation := <-from:
		return observation
	case <-time.After(30 * time.Second):
		t.Fatal("nothing observed")
		return probe.Observation{}
	}
}

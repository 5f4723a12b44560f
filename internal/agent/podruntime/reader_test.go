package podruntime

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/runtime/sim"
)

// start runs a Pod of one container and returns its IDs.
func start(t *testing.T, r *sim.Runtime, uid, name string) (box, container string) {
	t.Helper()
	ctx := context.Background()
	labels := map[string]string{"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "ns"}
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "ns", Uid: uid}, Labels: labels}
	box, err := r.RunPodSandbox(ctx, config, "")
	if err != nil {
		t.Fatal(err)
	}
	return box, startIn(t, r, box, config, 0)
}

func startIn(t *testing.T, r *sim.Runtime, box string, config *runtimeapi.PodSandboxConfig, attempt uint32) string {
	t.Helper()
	labels := map[string]string{"io.kubernetes.container.name": "web"}
	for k, v := range config.Labels {
		labels[k] = v
	}
	id, err := r.CreateContainer(context.Background(), box, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web", Attempt: attempt}, Image: &runtimeapi.ImageSpec{Image: "mend.local/web:1.0"}, Labels: labels,
		Annotations: map[string]string{"io.kubernetes.container.hash": "h", "io.kubernetes.pod.terminationGracePeriod": "12"},
	}, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// ask reads a Pod of which the runtime must answer.
func ask(t *testing.T, r *Reader, uid types.UID) State {
	t.Helper()
	state, err := r.Pod(context.Background(), uid)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestReaderOfARunningPod(t *testing.T) {
	runtime := sim.New(sim.Options{Log: slog.New(slog.DiscardHandler)})
	defer runtime.Stop()
	reader := NewReader(runtime, nil)
	box, id := start(t, runtime, "u1", "one")
	start(t, runtime, "u2", "two")
	state := ask(t, reader, "u1")
	c := state.Latest("web")
	if len(state.Containers) != 1 || c == nil || c.ID != id || c.Phase != Running || c.Hash != "h" || c.StartedAt.IsZero() || state.LatestActive("web") == nil {
		t.Errorf("running: %+v", state)
	}
	if active := state.ActiveSandbox(); active == nil || active.ID != box || len(state.IPs()) != 1 {
		t.Errorf("sandbox: %+v", state.Sandboxes)
	}
	if empty := ask(t, reader, "nobody"); !empty.Empty() {
		t.Errorf("nobody: %+v", empty)
	}
}

func TestReaderOfEndedContainers(t *testing.T) {
	runtime := sim.New(sim.Options{Log: slog.New(slog.DiscardHandler)})
	defer runtime.Stop()
	asked := 0
	reader := NewReader(runtime, func(*runtimeapi.ContainerStatus) string { asked++; return "said" })
	box, id := start(t, runtime, "u1", "one")
	if err := runtime.StopContainer(context.Background(), id, 1); err != nil {
		t.Fatal(err)
	}
	ask(t, reader, "u1")
	c := ask(t, reader, "u1").Latest("web")
	if c.Phase != Exited || c.Message != "said" || asked != 1 || c.FinishedAt.IsZero() {
		t.Errorf("ended (asked %d times): %+v", asked, c)
	}
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "one", Namespace: "ns", Uid: "u1"}, Labels: map[string]string{"io.kubernetes.pod.uid": "u1"}}
	next := startIn(t, runtime, box, config, 1)
	if state := ask(t, reader, "u1"); state.Latest("web").ID != next || len(state.Instances("web")) != 2 || len(state.Live()) != 1 {
		t.Errorf("restarted: %+v", state)
	}
}

func TestCensus(t *testing.T) {
	ctx := context.Background()
	runtime := sim.New(sim.Options{Log: slog.New(slog.DiscardHandler), Behaviour: sim.DefaultBehaviour().WithRules(
		sim.Rule{Stop: &sim.Stop{Delay: sim.Delay{Delay: metav1.Duration{Duration: time.Millisecond}}}})})
	defer runtime.Stop()
	reader := NewReader(runtime, nil)
	_, id := start(t, runtime, "u1", "one")
	compare := func() string {
		all, err := reader.Census(ctx)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		state, err := reader.Pod(ctx, "u1")
		if err != nil {
			t.Fatal(err)
		}
		one := all["u1"]
		if one.Fingerprint != state.Fingerprint() {
			t.Errorf("census %s, state %s", one.Fingerprint, state.Fingerprint())
		}
		if one.Name != "one" || one.Namespace != "ns" || one.TerminationGracePeriod == nil || *one.TerminationGracePeriod != 12 {
			t.Errorf("%+v", one)
		}
		return one.Fingerprint
	}
	before := compare()
	if err := runtime.StopContainer(ctx, id, 5); err != nil {
		t.Fatal(err)
	}
	if after := compare(); after == before {
		t.Errorf("an end is not seen: %s", after)
	}
}

func TestAStartThatWasTakenBackIsNone(t *testing.T) {
	const ended = runtimeapi.ContainerState_CONTAINER_EXITED
	reader := NewReader(nil, func(*runtimeapi.ContainerStatus) string { return "" })
	for _, tt := range []struct {
		name, message         string
		started               int64
		phase                 Phase
		retracted, mayHaveRun bool
	}{
		{"before its process was made", "failed to create containerd task: context canceled", 0, Created, true, false},
		{"while its process was let go", `failed to start containerd task "c": context canceled`, 0, Created, true, true},
		{"a program that is not there", "failed to create containerd task: exec: \"nope\": executable file not found in $PATH", 0, Exited, false, false},
		{"one that took too long", "failed to create containerd task: context deadline exceeded", 0, Exited, false, false},
		{"one that ran", "context canceled", 5, Exited, false, false},
	} {
		c := reader.convert("box", &runtimeapi.ContainerStatus{Id: "c", State: ended, Reason: "StartError", Message: tt.message, StartedAt: tt.started, FinishedAt: 7, ExitCode: 128})
		if c.Phase != tt.phase || c.Retracted != tt.retracted || c.MayHaveRun != tt.mayHaveRun || c.ExitCode != 128 {
			t.Errorf("%s: %+v", tt.name, c)
		}
		// A census lists it as ended, which is no news.
		state := State{Containers: []Container{c}}
		if got, want := state.Fingerprint(), containerPrint("c", Exited); got != want {
			t.Errorf("%s: fingerprint %s, want %s", tt.name, got, want)
		}
	}
}

func TestTheNewestContainerIsThatOfTheLastAttempt(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state := State{Containers: []Container{
		{ID: "a", Name: "web", Attempt: 0, CreatedAt: at},
		{ID: "b", Name: "web", Attempt: 1, CreatedAt: at.Add(-24 * time.Hour)}, // the wall clock was set back
	}}
	slices.SortStableFunc(state.Containers, newerContainer)
	if newest := state.Latest("web"); newest.ID != "b" {
		t.Errorf("the newest is %+v", newest)
	}
}

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"mend/internal/agent/podruntime"
)

// TestStartsThatWereTakenBackLeaveNothing takes back the start of many containers, each
// a little later, as the death of the mend that asked for them does. Whatever they came
// to, those that ended can be removed: through Removing at any time, and after the next
// start of the supervision by anybody. And the agent takes none of them for one that
// has run.
func TestStartsThatWereTakenBackLeaveNothing(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	p := w.runPod(w.sandboxConfig("one"), "mend.local/web:1.0")
	const uid = "late"
	reader := podruntime.NewReader(w.runtime, nil)
	ended, stuck := 0, 0
	for attempt := range 40 {
		id, err := w.startFor(time.Duration(10+2*attempt)*time.Millisecond, p, uid, attempt)
		if err == nil {
			break // later ones are no longer taken back in time
		}
		if w.state(id) != runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		ended++
		if state, err := reader.Pod(w.context(), uid); err != nil || len(state.Containers) == 0 || !state.Containers[0].Retracted {
			t.Errorf("the agent sees %+v (%v), want a container whose start was taken back", state.Containers, err)
		}
		if w.runtime.RemoveContainer(w.context(), id) == nil {
			continue
		}
		stuck++
		if stuck%2 == 1 {
			if err := w.sup.Removing(w.runtime).RemoveContainer(w.context(), id); err != nil {
				t.Errorf("remove what cannot be removed plainly: %v", err)
			}
		}
	}
	t.Logf("%d starts were taken back, %d of these containers could not be removed", ended, stuck)
	if ended == 0 {
		t.Error("no start was taken back: this proves nothing")
	}
	w.sup.Release()
	w.start() // as the next mend does
	containers, err := w.runtime.ListContainers(w.context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, container := range containers {
		if container.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			if err := w.runtime.RemoveContainer(w.context(), container.Id); err != nil {
				t.Errorf("remove %s: %v", container.Metadata.Name, err)
			}
		}
	}
	if err := errors.Join(w.runtime.StopPodSandbox(w.context(), p.sandbox), w.runtime.RemovePodSandbox(w.context(), p.sandbox)); err != nil {
		t.Error(err)
	}
}

// startFor starts a container and takes that back after a while; not by a deadline, of
// which the runtime would be told. The error is nil when the start was faster.
func (w *world) startFor(d time.Duration, p pod, uid string, attempt int) (string, error) {
	w.t.Helper()
	id, err := w.runtime.CreateContainer(w.context(), p.sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprintf("late-%d", attempt)},
		Image:    &runtimeapi.ImageSpec{Image: "mend.local/web:1.0"},
		Command:  []string{"sleep", "600"},
		Labels:   map[string]string{kubelettypes.KubernetesPodUIDLabel: uid},
		Linux:    &runtimeapi.LinuxContainerConfig{},
	}, p.config)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.context())
	defer cancel()
	late := time.AfterFunc(d, cancel)
	defer late.Stop()
	return id, w.runtime.StartContainer(ctx, id)
}

// state waits until a start that was taken back has been dealt with: it is created
// (and will be started again), runs, or has ended.
func (w *world) state(container string) runtimeapi.ContainerState {
	w.t.Helper()
	var last error
	var state runtimeapi.ContainerState
	settled := time.Now().Add(100 * time.Millisecond)
	w.eventually("the container has a state", func() bool {
		var got *runtimeapi.ContainerStatusResponse
		if got, last = w.runtime.ContainerStatus(w.context(), container, false); last != nil {
			return false
		}
		state = got.GetStatus().GetState()
		return state != runtimeapi.ContainerState_CONTAINER_CREATED || time.Now().After(settled)
	}, &last)
	return state
}

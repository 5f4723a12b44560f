package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/agent"
	"mend/internal/runtime/sim"
)

func execHook(command ...string) *v1.LifecycleHandler {
	return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: command}}
}

func TestPostStartHookThatFailsEndsTheContainer(t *testing.T) {
	w := newWorld(t, sim.Rule{Image: "*web*", Exec: []sim.ExecRule{{Command: "greet", Code: 7, Stderr: "no"}}})
	created := w.create(pod("web", func(p *v1.Pod) {
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: execHook("greet")}
	}))
	w.untilEvents(created.UID, "Warning FailedPostStartHook PostStartHook failed | kubelet spec.containers{web}", "Normal Killing FailedPostStartHook")
	p := w.until("web", "restarted", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].LastTerminationState.Terminated != nil
	})
	if podutil.IsPodReady(p) {
		t.Errorf("ready: %+v", p.Status)
	}
}

func TestPreStopHookRunsBeforeTheEnd(t *testing.T) {
	w := newWorld(t, sim.Rule{Image: "*web*", Exec: []sim.ExecRule{{Command: "bye", Delay: metav1.Duration{Duration: 100 * time.Millisecond}}}})
	w.create(pod("web", func(p *v1.Pod) { p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: execHook("bye")} }))
	w.until("web", "Ready", podutil.IsPodReady)
	began := time.Now()
	w.delete("web")
	w.untilGone("web")
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("gone after %v, before its hook was done", took)
	}
}

func TestContainerThatIgnoresItsSignalIsKilled(t *testing.T) {
	w := newWorld(t, sim.Rule{Image: "*web*", Stop: &sim.Stop{Ignore: true}})
	w.create(pod("web", func(p *v1.Pod) { grace := int64(60); p.Spec.TerminationGracePeriodSeconds = &grace }))
	w.until("web", "Ready", podutil.IsPodReady)
	w.delete("web") // in 60 seconds
	w.until("web", "terminating", func(p *v1.Pod) bool { return p.DeletionTimestamp != nil })
	short := int64(1)
	began := time.Now()
	if err := w.client.CoreV1().Pods("default").Delete(context.Background(), "web", metav1.DeleteOptions{GracePeriodSeconds: &short}); err != nil {
		t.Fatal(err)
	}
	w.untilGone("web")
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("a shorter grace period was not taken: %v", took)
	}
}

func TestFinalizerHoldsThePodNotItsContainers(t *testing.T) {
	w := newWorld(t)
	w.create(pod("web", func(p *v1.Pod) { p.Finalizers = []string{"example.com/hold"} }))
	w.until("web", "Ready", podutil.IsPodReady)
	w.delete("web")
	p := w.until("web", "ended", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed })
	if len(p.Status.PodIPs) == 0 || p.Status.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("final status: %+v", p.Status)
	}
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := w.client.CoreV1().Pods("default").Patch(context.Background(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.untilGone("web")
}

func TestSidecarsLiveAsLongAsWhatTheyServe(t *testing.T) {
	w := newWorld(t, exits("*job*", 200*time.Millisecond, 0))
	always := v1.ContainerRestartPolicyAlways
	created := w.create(pod("job", from("job:1"), func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.InitContainers = []v1.Container{{Name: "side", Image: "mend.local/web:1.0", RestartPolicy: &always}}
	}))
	w.until("job", "Succeeded", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded })
	w.untilEvents(created.UID, "Normal Killing Stopping container side | kubelet spec.initContainers{side}")
}

func TestDeadlineEndsAPod(t *testing.T) {
	w := newWorld(t)
	created := w.create(pod("late", func(p *v1.Pod) { limit := int64(1); p.Spec.ActiveDeadlineSeconds = &limit }))
	p := w.until("late", "Failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	if p.Status.Reason != "DeadlineExceeded" || !strings.HasPrefix(p.Status.Message, "Pod was active on the node longer than the specified deadline") {
		t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
	}
	w.untilEvents(created.UID, "Normal DeadlineExceeded Pod was active on the node longer than the specified deadline")
}

func TestTerminationMessage(t *testing.T) {
	w := newWorld(t, sim.Rule{Image: "*says*", Log: []string{"line one", "line two"}}, exits("*says*", 20*time.Millisecond, 1))
	w.create(pod("says", from("says:1"), func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.Containers[0].TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	}))
	p := w.until("says", "Failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	if got, want := p.Status.ContainerStatuses[0].State.Terminated.Message, "line one\nline two\n"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// A process has ended some time before the runtime has cleared it away and says so.
func TestAContainerWhoseProcessHasEndedIsNotReadyAtOnce(t *testing.T) {
	ends := make(chan string)
	w := newWorldWith(t, func(c *agent.Config) {
		c.Exits = func(ctx context.Context, exited func(string)) error {
			for {
				select {
				case container := <-ends:
					exited(container)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
	})
	w.create(pod("a"))
	w.create(pod("b"))
	w.until("b", "to be ready", podutil.IsPodReady)
	p := w.until("a", "to be ready", podutil.IsPodReady)
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	ends <- "nobody's"
	ends <- id
	p = w.until("a", "not to be ready", func(p *v1.Pod) bool { return !podutil.IsPodReady(p) })
	if c := p.Status.ContainerStatuses[0]; c.State.Running == nil || c.RestartCount != 0 {
		t.Errorf("the runtime says that the container runs; its status is %+v", c)
	}
	if b, err := w.get("b"); err != nil || !podutil.IsPodReady(b) {
		t.Errorf("the other Pod is %+v (%v)", b.Status, err)
	}
}

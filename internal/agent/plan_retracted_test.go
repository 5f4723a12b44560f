package agent

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"mend/internal/agent/podruntime"
)

// retracted is a container whose start was taken back when its process was there.
func retracted(id string, attempt uint32) podruntime.Container {
	c := running("web", id, "s0")
	c.Phase, c.Retracted, c.MayHaveRun, c.Attempt = podruntime.Created, true, true, attempt
	c.StartedAt, c.ExitCode, c.Reason = time.Time{}, 128, "StartError"
	return c
}

func TestPlanForStartsThatWereTakenBack(t *testing.T) {
	for _, c := range []planCase{
		{"one whose start was taken back is removed and counts as no restart", with(fresh(), func(o *Observed) {
			inBox(o)
			add(o, retracted("c1", 1))
		}), want{Actions: []Action{{Kind: RemoveContainer, Container: "web", ID: "c1", Attempt: 1, Why: "it was created and never started"}},
			Phase: v1.PodPending, States: "waiting ContainerCreating"}},
		{"one that is to run once is not run again when it may have begun", with(fresh(policy(v1.RestartPolicyNever)), func(o *Observed) {
			inBox(o)
			add(o, retracted("c0", 0))
		}), want{Actions: []Action{{Kind: StopSandbox, ID: "s0", Why: "no container of the Pod runs"}},
			Phase: v1.PodFailed, States: "ended 128 StartError"}},
	} {
		t.Run(c.name, c.run)
	}
}

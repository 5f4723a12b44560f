package status

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"mend/internal/agent/podruntime"
)

// Reasons and messages that people and programs look for.
const (
	ReasonContainerCreating = "ContainerCreating"
	ReasonPodInitializing   = "PodInitializing"
	ReasonCrashLoop         = "CrashLoopBackOff"
	reasonStatusUnknown     = "ContainerStatusUnknown"
	reasonSandboxNotReady   = "PodSandboxNotReady"
	messageVanished         = "The container could not be located when the pod was terminated"
	messageVanishedBefore   = "The container could not be located when the pod was deleted.  The container used to be Running"
	exitKilled              = 137
)

// Waiting is why a container that should run does not.
type Waiting struct{ Reason, Message string }

// Health is what probes say of one running container.
type Health struct{ Started, Ready bool }

// Verdict is a decision about the whole Pod from outside its containers: it was
// refused, or ran past its deadline.
type Verdict struct{ Reason, Message string }

// Input is everything a status is made of.
type Input struct {
	Pod     *v1.Pod
	Runtime podruntime.State
	Old     v1.PodStatus // the one generated before, or the API's
	HostIPs []string     // primary first
	// RuntimeName begins every container ID that the API shows ("containerd").
	RuntimeName string
	Now         time.Time
	// Starting are containers with a start under way, postStart hook included:
	// they are shown as waiting until it ends.
	Starting map[string]bool
	Waiting  map[string]Waiting // by container name
	Health   map[string]Health  // by container ID
	Verdict  *Verdict
	// Ended says that nothing of the Pod runs and nothing will any more.
	Ended bool
}

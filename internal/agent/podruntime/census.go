package podruntime

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"mend/internal/agent/podspec"
)

// Resident is one Pod that the runtime holds something of. Fingerprint changes
// when a sandbox or container of it appears, goes or changes phase.
// TerminationGracePeriod (seconds) is what its containers remember, nil if
// nothing.
type Resident struct {
	Identity
	Fingerprint            string
	TerminationGracePeriod *int64
}

// Census lists every Pod the runtime holds something of, in two calls.
func (r *Reader) Census(ctx context.Context) (map[types.UID]Resident, error) {
	containers, err := r.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	sandboxes, err := r.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	prints := map[types.UID]map[string]bool{}
	all := map[types.UID]Resident{}
	note := func(labels map[string]string, print string) {
		id := identityOf(labels)
		if id.UID == "" {
			return // not started by an agent
		}
		if prints[id.UID] == nil {
			prints[id.UID] = map[string]bool{}
			all[id.UID] = Resident{Identity: id}
		}
		prints[id.UID][print] = true
	}
	for _, s := range sandboxes {
		note(s.Labels, sandboxPrint(s.Id, s.State == runtimeapi.PodSandboxState_SANDBOX_READY))
	}
	for _, c := range containers {
		note(c.Labels, containerPrint(c.Id, phaseOf(c.State)))
		uid := identityOf(c.Labels).UID
		if grace, ok := graceOf(c.Annotations); ok && uid != "" {
			resident := all[uid]
			resident.TerminationGracePeriod = &grace
			all[uid] = resident
		}
	}
	for uid, resident := range all {
		resident.Fingerprint = joinPrints(prints[uid])
		all[uid] = resident
	}
	return all, nil
}

// Fingerprint is what a census would say of the same state.
func (s State) Fingerprint() string {
	prints := map[string]bool{}
	for _, sandbox := range s.Sandboxes {
		prints[sandboxPrint(sandbox.ID, sandbox.Ready)] = true
	}
	for _, c := range s.Containers {
		prints[containerPrint(c.ID, c.listed())] = true
	}
	return joinPrints(prints)
}

// listed is the phase in which the runtime lists the container.
func (c Container) listed() Phase {
	if c.Retracted {
		return Exited
	}
	return c.Phase
}

// Agrees says whether an event tells nothing of its sandbox that the state does
// not say already.
func (s State) Agrees(e *runtimeapi.ContainerEventResponse) bool {
	told := e.GetPodSandboxStatus()
	at := slices.IndexFunc(s.Sandboxes, func(box Sandbox) bool { return box.ID == told.GetId() })
	if at < 0 || s.Sandboxes[at].Ready != (told.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY) {
		return false
	}
	phases := map[string]Phase{}
	for _, c := range s.Containers {
		if c.SandboxID == told.Id {
			phases[c.ID] = c.listed()
		}
	}
	if len(phases) != len(e.ContainersStatuses) {
		return false
	}
	for _, c := range e.ContainersStatuses {
		if phases[c.Id] != phaseOf(c.State) {
			return false
		}
	}
	return true
}

func identityOf(labels map[string]string) Identity {
	return Identity{
		UID:       types.UID(labels[kubelettypes.KubernetesPodUIDLabel]),
		Namespace: labels[kubelettypes.KubernetesPodNamespaceLabel],
		Name:      labels[kubelettypes.KubernetesPodNameLabel],
	}
}

func graceOf(annotations map[string]string) (int64, bool) {
	seconds, err := strconv.ParseInt(annotations[podspec.TerminationGracePeriodAnnotation], 10, 64)
	return seconds, err == nil
}

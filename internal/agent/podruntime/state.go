package podruntime

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Phase is where a container is in its own life.
type Phase string

// The phases a runtime knows. Created means created and not (yet) started.
const (
	Created Phase = "created"
	Running Phase = "running"
	Exited  Phase = "exited"
	Unknown Phase = "unknown"
)

// State is what the runtime holds of one Pod. Both lists are newest first.
type State struct {
	Sandboxes  []Sandbox
	Containers []Container
}

// Sandbox is one pod sandbox. IPs is empty while it is not ready and for Pods on
// the host's network.
type Sandbox struct {
	ID          string
	Attempt     uint32
	Ready       bool
	HostNetwork bool
	CreatedAt   time.Time
	IPs         []string
}

// Container is one container, dead or alive. Times are zero where they do not
// apply. Attempt is the restart count. LogPath is absolute.
//
// Retracted: the runtime took its start back because the agent that asked for it
// died, or ended. The runtime calls that an end; here it is Created, as if it had
// never been started, so that the end of an agent counts as no restart. MayHaveRun:
// its process may have begun before the runtime killed it.
type Container struct {
	ID         string
	Name       string
	SandboxID  string
	Attempt    uint32
	Hash       string
	Phase      Phase
	Retracted  bool
	MayHaveRun bool
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int32
	Reason     string
	Message    string
	Image      string // as the runtime names it
	ImageRef   string // with digest; status.imageID
	LogPath    string
	User       *v1.ContainerUser
}

// Identity is the Pod a sandbox or container belongs to, as its labels say.
type Identity struct {
	UID       types.UID
	Namespace string
	Name      string
}

// ActiveSandbox is the sandbox that containers may run in: the newest, if it is
// ready. nil if there is none.
func (s State) ActiveSandbox() *Sandbox {
	if len(s.Sandboxes) == 0 || !s.Sandboxes[0].Ready {
		return nil
	}
	return &s.Sandboxes[0]
}

// IPs are the addresses of the active sandbox.
func (s State) IPs() []string {
	if active := s.ActiveSandbox(); active != nil {
		return active.IPs
	}
	return nil
}

// Latest is the newest container of that name in any sandbox, nil if none.
func (s State) Latest(name string) *Container {
	for i := range s.Containers {
		if s.Containers[i].Name == name {
			return &s.Containers[i]
		}
	}
	return nil
}

// LatestActive is the newest container of that name in the active sandbox.
func (s State) LatestActive(name string) *Container {
	active := s.ActiveSandbox()
	if active == nil {
		return nil
	}
	for i := range s.Containers {
		if s.Containers[i].Name == name && s.Containers[i].SandboxID == active.ID {
			return &s.Containers[i]
		}
	}
	return nil
}

// Instances are all containers of that name, newest first.
func (s State) Instances(name string) []Container {
	var all []Container
	for _, c := range s.Containers {
		if c.Name == name {
			all = append(all, c)
		}
	}
	return all
}

// Live are the containers that run or may run (unknown), newest first.
func (s State) Live() []Container {
	var live []Container
	for _, c := range s.Containers {
		if c.Phase == Running || c.Phase == Unknown {
			live = append(live, c)
		}
	}
	return live
}

// Empty says that the runtime holds nothing of the Pod.
func (s State) Empty() bool { return len(s.Sandboxes) == 0 && len(s.Containers) == 0 }

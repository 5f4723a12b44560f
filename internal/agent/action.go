package agent

// Kind is what an action does.
type Kind string

// The closed set of actions. Each is one transition of a sandbox, a container,
// the Pod's files, or the API object.
const (
	SetUpVolumes    Kind = "set up volumes"
	RunSandbox      Kind = "run sandbox"
	EnsureImage     Kind = "ensure image"
	StartContainer  Kind = "start container" // create, start, postStart hook
	LeaveEndpoints  Kind = "leave endpoints" // until no request reaches the Pod
	KillContainer   Kind = "kill container"  // preStop hook, SIGTERM, grace, SIGKILL
	StopSandbox     Kind = "stop sandbox"
	RemoveContainer Kind = "remove container"
	RemoveSandbox   Kind = "remove sandbox"
	TearDown        Kind = "tear down"  // volumes, files and cgroup
	DeletePod       Kind = "delete pod" // the API object, with grace 0
	Abandon         Kind = "abandon"    // cancel what is under way in lane ID
	Forget          Kind = "forget"     // logs and memory of a Pod that is gone
)

// Action is one step. Container is a name; ID that of a container or sandbox,
// for StartContainer of the sandbox it starts in. Attempt is that of the sandbox
// or container to be made, Grace whole seconds.
type Action struct {
	Kind      Kind
	Container string
	ID        string
	Attempt   uint32
	Grace     int64
	// Again replaces a kill under way by one with less grace.
	Again bool
	Why   string
}

// Lanes: two actions in the same lane never run at once.
const (
	laneVolumes = "volumes"
	laneSandbox = "sandbox"
	laneTraffic = "traffic"
	laneDelete  = "delete"
)

func imageLane(container string) string { return "image/" + container }
func startLane(container string) string { return "start/" + container }
func killLane(id string) string         { return "kill/" + id }

func (a Action) lane() string {
	switch a.Kind {
	case SetUpVolumes, TearDown:
		return laneVolumes
	case RunSandbox:
		return laneSandbox
	case LeaveEndpoints:
		return laneTraffic
	case EnsureImage:
		return imageLane(a.Container)
	case StartContainer:
		return startLane(a.Container)
	case KillContainer:
		return killLane(a.ID)
	case StopSandbox:
		return "stop/" + a.ID
	case RemoveContainer, RemoveSandbox:
		return "remove/" + a.ID
	case DeletePod:
		return laneDelete
	case Forget:
		return "forget"
	case Abandon:
		return "abandon/" + a.ID
	}
	return string(a.Kind)
}

// shows says whether the runtime shows the effect of the action, so that planning
// it again means that it had none.
func (a Action) shows() bool {
	switch a.Kind {
	case RunSandbox, StartContainer, KillContainer, StopSandbox, RemoveContainer, RemoveSandbox:
		return true
	case SetUpVolumes, EnsureImage, LeaveEndpoints, TearDown, DeletePod, Abandon, Forget:
	}
	return false
}

// Notice is an event that belongs to a state, not to an action. It is written
// once for each Key. Container "" means the Pod itself.
type Notice struct {
	Key       string
	Container string
	Type      string // Normal or Warning
	Reason    string
	Message   string
}

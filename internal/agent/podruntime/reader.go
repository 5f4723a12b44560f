package podruntime

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"mend/internal/agent/podspec"
)

// EndMessages turns the end of a container into the message its status shows:
// the termination message file, or the last lines of its log. ended is the
// runtime's answer for an exited container. Called once per container.
type EndMessages func(ended *runtimeapi.ContainerStatus) string

// Reader asks the runtime. It is safe for concurrent use.
type Reader struct {
	runtime  cri.RuntimeService
	messages EndMessages
	mu       sync.Mutex
	ended    map[string]Container // containers whose end is known, by ID
	networks map[string]network   // by sandbox ID
}

type network struct {
	ips         []string
	hostNetwork bool
}

// NewReader reads from runtime. messages may be nil.
func NewReader(runtime cri.RuntimeService, messages EndMessages) *Reader {
	if messages == nil {
		messages = func(*runtimeapi.ContainerStatus) string { return "" }
	}
	return &Reader{runtime: runtime, messages: messages,
		ended: map[string]Container{}, networks: map[string]network{}}
}

// Pod asks for everything of one Pod. It blocks for as long as the runtime does;
// ctx bounds that.
func (r *Reader) Pod(ctx context.Context, uid types.UID) (State, error) {
	byUID := map[string]string{kubelettypes.KubernetesPodUIDLabel: string(uid)}
	// Containers before sandboxes: a container listed has its sandbox listed too.
	containers, err := r.runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: byUID})
	if err != nil {
		return State{}, fmt.Errorf("list containers of Pod %s: %w", uid, err)
	}
	sandboxes, err := r.runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: byUID})
	if err != nil {
		return State{}, fmt.Errorf("list sandboxes of Pod %s: %w", uid, err)
	}
	return r.assemble(ctx, sandboxes, containers)
}

func (r *Reader) assemble(ctx context.Context, sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) (State, error) {
	var state State
	for _, s := range sandboxes {
		sandbox, err := r.sandbox(ctx, s)
		if err != nil {
			return State{}, err
		}
		if sandbox != nil {
			state.Sandboxes = append(state.Sandboxes, *sandbox)
		}
	}
	for _, c := range containers {
		container, err := r.container(ctx, c)
		if err != nil {
			return State{}, err
		}
		if container != nil {
			state.Containers = append(state.Containers, *container)
		}
	}
	slices.SortStableFunc(state.Sandboxes, newerSandbox)
	slices.SortStableFunc(state.Containers, newerContainer)
	return state, nil
}

func newerSandbox(a, b Sandbox) int {
	switch {
	case a.Attempt != b.Attempt:
		return int(b.Attempt) - int(a.Attempt)
	case !a.CreatedAt.Equal(b.CreatedAt):
		return b.CreatedAt.Compare(a.CreatedAt)
	}
	return strings.Compare(a.ID, b.ID)
}

// newerContainer goes by attempts, which only grow within a name: when the wall clock
// is set back, the time of creation does not.
func newerContainer(a, b Container) int {
	switch {
	case a.Attempt != b.Attempt:
		return int(b.Attempt) - int(a.Attempt)
	case !a.CreatedAt.Equal(b.CreatedAt):
		return b.CreatedAt.Compare(a.CreatedAt)
	}
	return strings.Compare(a.ID, b.ID)
}

// sandbox returns nil for one that vanished since it was listed.
func (r *Reader) sandbox(ctx context.Context, s *runtimeapi.PodSandbox) (*Sandbox, error) {
	sandbox := &Sandbox{
		ID:        s.Id,
		Attempt:   s.GetMetadata().GetAttempt(),
		Ready:     s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: time.Unix(0, s.CreatedAt),
	}
	if !sandbox.Ready {
		return sandbox, nil
	}
	r.mu.Lock()
	known, ok := r.networks[s.Id]
	r.mu.Unlock()
	if !ok {
		resp, err := r.runtime.PodSandboxStatus(ctx, s.Id, false)
		if IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("status of sandbox %s: %w", s.Id, err)
		}
		known = networkOf(resp.GetStatus())
		// A sandbox without an address may get one: do not remember that.
		if known.hostNetwork || len(known.ips) > 0 {
			r.mu.Lock()
			r.networks[s.Id] = known
			r.mu.Unlock()
		}
	}
	sandbox.IPs, sandbox.HostNetwork = known.ips, known.hostNetwork
	return sandbox, nil
}

func networkOf(s *runtimeapi.PodSandboxStatus) network {
	mode := s.GetLinux().GetNamespaces().GetOptions().GetNetwork()
	n := network{hostNetwork: mode == runtimeapi.NamespaceMode_NODE}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		n.ips = append(n.ips, ip)
	}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		n.ips = append(n.ips, more.Ip)
	}
	return n
}

// container returns nil for one that vanished since it was listed.
func (r *Reader) container(ctx context.Context, c *runtimeapi.Container) (*Container, error) {
	if c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		r.mu.Lock()
		known, ok := r.ended[c.Id]
		r.mu.Unlock()
		if ok {
			return &known, nil
		}
	}
	resp, err := r.runtime.ContainerStatus(ctx, c.Id, false)
	if IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("status of container %s: %w", c.Id, err)
	}
	container := r.convert(c.PodSandboxId, resp.GetStatus())
	if container.Phase == Exited {
		r.mu.Lock()
		r.ended[c.Id] = container
		r.mu.Unlock()
	}
	return &container, nil
}

func (r *Reader) convert(sandboxID string, s *runtimeapi.ContainerStatus) Container {
	name := s.GetLabels()[kubelettypes.KubernetesContainerNameLabel]
	if name == "" {
		name = s.GetMetadata().GetName()
	}
	c := Container{
		ID:        s.Id,
		Name:      name,
		SandboxID: sandboxID,
		Attempt:   s.GetMetadata().GetAttempt(),
		Hash:      s.GetAnnotations()[podspec.HashAnnotation],
		Phase:     phaseOf(s.State),
		CreatedAt: time.Unix(0, s.CreatedAt),
		Image:     s.GetImage().GetImage(),
		ImageRef:  s.ImageRef,
		LogPath:   s.LogPath,
		User:      userOf(s.User),
	}
	if c.Phase == Exited && wasRetracted(s) {
		c.Phase, c.Retracted, c.MayHaveRun = Created, true, strings.HasPrefix(s.Message, startOfTask)
		c.FinishedAt, c.ExitCode, c.Reason, c.Message = time.Unix(0, s.FinishedAt), s.ExitCode, s.Reason, s.Message
	}
	if c.Phase != Created {
		c.StartedAt = time.Unix(0, s.StartedAt)
	}
	if c.Phase == Exited {
		c.FinishedAt = time.Unix(0, s.FinishedAt)
		c.ExitCode, c.Reason, c.Message = s.ExitCode, s.Reason, s.Message
		if said := r.messages(s); said != "" {
			if c.Message != "" {
				c.Message += ": "
			}
			c.Message += said
		}
	}
	return c
}

// wasRetracted says whether a container ended because its start was taken back,
// which is what the runtime does when the connection is lost on which it was asked
// for. A start that fails says something else.
func wasRetracted(s *runtimeapi.ContainerStatus) bool {
	return s.StartedAt == 0 && s.Reason == reasonStartError && strings.HasSuffix(s.Message, context.Canceled.Error())
}

// What containerd says of a container whose start failed, and of one whose process
// was there already, waiting to be let go.
const (
	reasonStartError = "StartError"
	startOfTask      = "failed to start containerd task"
)

func phaseOf(state runtimeapi.ContainerState) Phase {
	switch state {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return Exited
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		return Unknown
	}
	return Unknown
}

func userOf(u *runtimeapi.ContainerUser) *v1.ContainerUser {
	if u.GetLinux() == nil {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{
		UID:                u.Linux.Uid,
		GID:                u.Linux.Gid,
		SupplementalGroups: u.Linux.SupplementalGroups,
	}}
}

// IsNotFound says whether a CRI call failed because its object does not exist.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// ForgetContainer drops what is remembered of a container that was removed.
func (r *Reader) ForgetContainer(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ended, id)
}

// Forget drops what is remembered of a Pod that is gone.
func (r *Reader) Forget(state State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range state.Sandboxes {
		delete(r.networks, s.ID)
	}
	for _, c := range state.Containers {
		delete(r.ended, c.ID)
	}
}

package sim

import (
	"context"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ending is how a container came to its end.
type ending struct {
	code    int32
	reason  string
	message string
}

// killed is an end by SIGKILL.
var killed = ending{code: 137}

type container struct {
	id      string
	serial  uint64
	box     *sandbox
	config  *runtimeapi.ContainerConfig
	image   *image
	traits  traits
	argv    []string             // command and arguments, or the image's entrypoint
	logPath string               // empty: output is dropped
	files   memory               // what it wrote outside mounts
	web     web                  // its state as a server
	logMu   sync.Mutex           // orders writes to the log
	heldLog []byte               // formatted, not in the file yet, guarded by logMu
	logMade bool                 // the file is there, guarded by logMu
	viewers map[*viewer]struct{} // attached, guarded by logMu
	program *shell               // used by the schedule's goroutine only

	// Guarded by Runtime.mu. All above is set once, or guards itself.
	limits                     *runtimeapi.LinuxContainerResources
	state                      runtimeapi.ContainerState
	starting                   bool
	created, started, finished int64 // ns
	readyAt                    time.Time
	pid                        int
	end                        ending
	done                       chan struct{}          // closed at the end; made by the first who waits
	timers                     map[string]func() bool // by purpose; taken back at the end
	removed                    bool
}

// CreateContainer fails for an unknown sandbox or one that does not run, and
// for an image that is not present.
func (r *Runtime) CreateContainer(_ context.Context, sandboxID string, config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	if config.GetMetadata().GetName() == "" {
		return "", status.Error(codes.InvalidArgument, "container config must include metadata with a name")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	box := r.sandboxes[sandboxID]
	if box == nil {
		return "", status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", sandboxID)
	}
	if !box.ready {
		return "", status.Errorf(codes.Unknown, "sandbox %q is not running", sandboxID)
	}
	img := r.findImage(config.GetImage().GetImage())
	if img == nil {
		return "", status.Errorf(codes.NotFound, "failed to get image from containerd %q: not found", config.GetImage().GetImage())
	}
	for _, other := range box.members {
		if proto.Equal(other.config.Metadata, config.Metadata) {
			return "", status.Errorf(codes.Unknown, "failed to reserve container name %q: name is reserved for %q", config.Metadata.Name, other.id)
		}
	}
	argv := append(append([]string{}, config.Command...), config.Args...)
	c := &container{
		id:      r.newID(),
		serial:  r.serial,
		box:     box,
		config:  proto.CloneOf(config),
		image:   img,
		traits:  r.behaviour.traitsOf(imageName(config, img), strings.Join(argv, " ")),
		created: r.clock.Now().UnixNano(),
		state:   runtimeapi.ContainerState_CONTAINER_CREATED,
	}
	c.limits = c.config.GetLinux().GetResources()
	if len(argv) == 0 {
		argv = c.traits.entrypoint
	}
	c.argv = argv
	if dir := box.config.LogDirectory; dir != "" && config.LogPath != "" {
		c.logPath = filepath.Join(dir, config.LogPath)
	}
	r.containers[c.id] = c
	r.podContainers.add(c.config.Labels, c)
	box.members = append(box.members, c)
	r.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, box)
	return c.id, nil
}

// imageName is the name to match rules with: an agent may create by image id.
func imageName(config *runtimeapi.ContainerConfig, img *image) string {
	if user := config.GetImage().GetUserSpecifiedImage(); user != "" {
		return user
	}
	if name := config.GetImage().GetImage(); !strings.HasPrefix(name, "sha256:") {
		return name
	}
	return img.name
}

// StartContainer takes the start delay. When the behaviour says that the start
// fails, the container has ended with code 128 and reason StartError.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	r.mu.Lock()
	c := r.containers[id]
	switch {
	case c == nil:
		r.mu.Unlock()
		return notFound(id)
	case c.state != runtimeapi.ContainerState_CONTAINER_CREATED || c.starting:
		state := c.state
		r.mu.Unlock()
		return status.Errorf(codes.Unknown, "container is in %s state", state)
	}
	c.starting = true
	delay := c.traits.start.of(r.behaviour.Seed, c.timingKey("start")...)
	r.mu.Unlock()

	err := r.pause(ctx, delay)
	r.mu.Lock()
	defer r.mu.Unlock()
	c.starting = false
	switch {
	case err != nil:
		return contextStatus(err)
	case c.removed || !c.box.ready:
		return status.Errorf(codes.Unknown, "sandbox container %q is not running", c.box.id)
	case c.traits.start.Error != "":
		program := ""
		if len(c.argv) > 0 {
			program = c.argv[0]
		}
		message := strings.ReplaceAll(c.traits.start.Error, "{program}", program)
		r.finish(c, ending{code: 128, reason: "StartError", message: message})
		return status.Error(codes.Unknown, message)
	}
	r.run(c)
	return nil
}

// run moves a created container to running and begins what its behaviour says.
// Callers hold r.mu.
func (r *Runtime) run(c *container) {
	now := r.clock.Now()
	seed := r.behaviour.Seed
	c.state = runtimeapi.ContainerState_CONTAINER_RUNNING
	c.started = now.UnixNano()
	c.pid = r.newPID()
	c.readyAt = now.Add(c.traits.ready.of(seed, c.timingKey("ready")...))
	r.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c.box)
	// What the container prints and runs happens outside the lock, behind the
	// start, as in a process of its own.
	r.later(c, "program", 0, func() { r.begin(c) })
	if exit := c.traits.exit; exit != nil {
		after := spread(seed, exit.After.Duration, exit.Spread.Duration, c.timingKey("exit")...)
		r.later(c, "exit", after, func() { r.end(c, ending{code: exit.Code, reason: exit.Reason}) })
	}
}

// later runs do after a delay unless the container has ended by then; for one
// purpose only the last call counts. Callers hold r.mu.
func (r *Runtime) later(c *container, purpose string, delay time.Duration, do func()) {
	if cancel := c.timers[purpose]; cancel != nil {
		cancel()
	}
	if c.timers == nil {
		c.timers = map[string]func() bool{}
	}
	c.timers[purpose] = r.schedule.After(delay, do)
}

// end finishes a container from outside the lock.
func (r *Runtime) end(c *container, how ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finish(c, how)
}

// finish ends a container that has not ended. Callers hold r.mu.
func (r *Runtime) finish(c *container, how ending) {
	running := c.state == runtimeapi.ContainerState_CONTAINER_RUNNING
	if !running && how.reason != "StartError" {
		return
	}
	for _, cancel := range c.timers {
		cancel()
	}
	c.timers = nil
	if how.reason == "" {
		how.reason = "Completed"
		if how.code != 0 {
			how.reason = "Error"
		}
	}
	c.state = runtimeapi.ContainerState_CONTAINER_EXITED
	c.finished = r.clock.Now().UnixNano()
	c.end = how
	c.pid = 0
	if c.done != nil {
		close(c.done)
	}
	if running {
		r.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.box)
	}
}

// StopContainer sends the container SIGTERM and, when the timeout (seconds) is
// over, SIGKILL. It returns when the container has ended; one that is unknown or
// has ended is no error.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	r.mu.Lock()
	c := r.containers[id]
	if c == nil || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.mu.Unlock()
		return nil
	}
	if c.done == nil {
		c.done = make(chan struct{})
	}
	done := c.done
	r.terminate(c)
	r.mu.Unlock()

	timer := r.clock.NewTimer(time.Duration(timeout) * time.Second)
	defer timer.Stop()
	if timeout > 0 {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return contextStatus(ctx.Err())
		case <-timer.C():
		}
	}
	r.end(c, killed)
	return nil
}

// terminate is SIGTERM. Callers hold r.mu.
func (r *Runtime) terminate(c *container) {
	stop := c.traits.stop
	if stop == nil {
		// A process with id 1 that has no handler for a signal ignores it; so do
		// sh, sleep and their like. Servers have one.
		stop = &Stop{Ignore: !c.isServer()}
	}
	if stop.Ignore || c.web.isDeaf() {
		return
	}
	delay := stop.of(r.behaviour.Seed, c.timingKey("stop")...)
	switch {
	case c.traits.listen.Sample && c.isServer():
		r.later(c, "stop", delay, func() {
			r.print(c, "web: terminating")
			r.end(c, ending{code: stop.Code})
		})
	case delay <= 0:
		r.finish(c, ending{code: stop.Code})
	default:
		r.later(c, "stop", delay, func() { r.end(c, ending{code: stop.Code}) })
	}
}

// RemoveContainer kills and removes; one that is gone is no error.
func (r *Runtime) RemoveContainer(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.removeContainer(c)
	}
	return nil
}

func (r *Runtime) removeContainer(c *container) {
	r.finish(c, killed)
	c.removed = true
	delete(r.containers, c.id)
	r.podContainers.remove(c.config.Labels, c)
	for i, member := range c.box.members {
		if member == c {
			c.box.members = append(c.box.members[:i], c.box.members[i+1:]...)
			break
		}
	}
	r.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.box)
}

// Exit lets a running container end, as if its process had ended by itself or
// been killed from outside. It reports whether the container was running.
// Reason may be empty (Completed or Error by code) or, for one, OOMKilled.
func (r *Runtime) Exit(containerID string, code int32, reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[containerID]
	if c == nil || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return false
	}
	r.finish(c, ending{code: code, reason: reason})
	return true
}

// ListContainers lists oldest first.
func (r *Runtime) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	candidates, named := r.podContainers.asked(filter.GetLabelSelector())
	if !named {
		candidates = r.sortedContainers()
	}
	found := []*runtimeapi.Container{}
	for _, c := range candidates {
		if filter.GetId() != "" && filter.Id != c.id ||
			filter.GetState() != nil && filter.State.State != c.state ||
			filter.GetPodSandboxId() != "" && filter.PodSandboxId != c.box.id ||
			!hasLabels(c.config.Labels, filter.GetLabelSelector()) {
			continue
		}
		found = append(found, &runtimeapi.Container{
			Id:           c.id,
			PodSandboxId: c.box.id,
			Metadata:     c.config.Metadata,
			Image:        c.config.Image,
			ImageRef:     c.image.id,
			ImageId:      c.image.id,
			State:        c.state,
			CreatedAt:    c.created,
			Labels:       c.config.Labels,
			Annotations:  c.config.Annotations,
		})
	}
	return found, nil
}

func (r *Runtime) sortedContainers() []*container {
	all := make([]*container, 0, len(r.containers))
	for _, c := range r.containers {
		all = append(all, c)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].serial < all[j].serial })
	return all
}

// ContainerStatus fails with NotFound for an unknown container. With verbose,
// info has containerd's shape: key "info" with a JSON object that holds "pid".
func (r *Runtime) ContainerStatus(_ context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
	}
	response := &runtimeapi.ContainerStatusResponse{Status: c.status()}
	if verbose {
		response.Info = verboseInfo(map[string]any{"sandboxID": c.box.id, "pid": c.pid})
	}
	return response, nil
}

func (c *container) status() *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id:          c.id,
		Metadata:    c.config.Metadata,
		State:       c.state,
		CreatedAt:   c.created,
		StartedAt:   c.started,
		FinishedAt:  c.finished,
		ExitCode:    c.end.code,
		Image:       &runtimeapi.ImageSpec{Image: c.image.name},
		ImageRef:    c.image.digest(),
		ImageId:     c.image.id,
		Reason:      c.end.reason,
		Message:     c.end.message,
		Labels:      c.config.Labels,
		Annotations: c.config.Annotations,
		Mounts:      c.config.Mounts,
		LogPath:     c.logPath,
		Resources:   &runtimeapi.ContainerResources{Linux: c.limits},
		StopSignal:  c.config.StopSignal,
	}
}

// UpdateContainerResources records the limits; nothing enforces them.
func (r *Runtime) UpdateContainerResources(_ context.Context, id string, resources *runtimeapi.ContainerResources) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return notFound(id)
	}
	// A status handed out earlier points to the old limits: replace them.
	c.limits = proto.CloneOf(resources.GetLinux())
	return nil
}

func notFound(id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
}

// timingKey names what a seeded delay belongs to.
func (c *container) timingKey(what string) []string {
	pod := c.box.config.Metadata
	meta := c.config.Metadata
	return []string{what, pod.Namespace, pod.Name, pod.Uid, meta.Name, string(rune('0' + meta.Attempt))}
}

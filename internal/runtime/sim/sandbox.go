package sim

import (
	"context"
	"encoding/json"
	"net/netip"
	"sort"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandbox struct {
	id      string
	serial  uint64
	config  *runtimeapi.PodSandboxConfig
	handler string
	created int64 // ns
	ready   bool
	pid     int
	address netip.Addr // invalid on the host's network
	members []*container
	files   memory // what its containers wrote below mounts, by host path
}

// RunPodSandbox takes the behaviour's sandbox delay and gives the sandbox an
// address, unless it is on the host's network.
func (r *Runtime) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	meta := config.GetMetadata()
	if meta == nil || meta.Name == "" || meta.Namespace == "" {
		return "", status.Error(codes.InvalidArgument, "sandbox config must include metadata with name and namespace")
	}
	if handler != "" && handler != "runc" {
		return "", status.Errorf(codes.Unknown, "failed to get sandbox runtime: no runtime for %q is configured", handler)
	}
	r.mu.Lock()
	delay := r.behaviour.Sandbox.of(r.behaviour.Seed, "sandbox", meta.Namespace, meta.Name, meta.Uid)
	r.mu.Unlock()
	if err := r.pause(ctx, delay); err != nil {
		return "", contextStatus(err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	var address netip.Addr
	if !onHostNetwork(config) {
		taken, err := r.podRange.take()
		if err != nil {
			return "", status.Errorf(codes.Unknown, "failed to setup network for sandbox: %v", err)
		}
		address = taken
	}
	box := &sandbox{
		id:      r.newID(),
		serial:  r.serial,
		config:  proto.CloneOf(config),
		handler: handler,
		created: r.clock.Now().UnixNano(),
		ready:   true,
		pid:     r.newPID(),
		address: address,
	}
	r.sandboxes[box.id] = box
	r.podSandboxes.add(box.config.Labels, box)
	if address.IsValid() {
		r.byAddress[address] = box
	} else {
		r.onHost[box] = struct{}{}
	}
	r.emit(box.id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, box)
	r.emit(box.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, box)
	return box.id, nil
}

func onHostNetwork(config *runtimeapi.PodSandboxConfig) bool {
	return config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// StopPodSandbox kills what runs in it and frees its address. It is no error if
// the sandbox is stopped or gone.
func (r *Runtime) StopPodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if box := r.sandboxes[id]; box != nil {
		r.stopSandbox(box)
	}
	return nil
}

func (r *Runtime) stopSandbox(box *sandbox) {
	for _, c := range box.members {
		r.finish(c, killed)
	}
	if !box.ready {
		return
	}
	box.ready = false
	delete(r.onHost, box)
	if box.address.IsValid() {
		delete(r.byAddress, box.address)
		r.podRange.release(box.address)
	}
	r.emit(box.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, box)
}

// RemovePodSandbox stops the sandbox and removes it with its containers. It is
// no error if it is gone.
func (r *Runtime) RemovePodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	box := r.sandboxes[id]
	if box == nil {
		return nil
	}
	r.stopSandbox(box)
	for len(box.members) > 0 {
		r.removeContainer(box.members[0])
	}
	delete(r.sandboxes, id)
	r.podSandboxes.remove(box.config.Labels, box)
	r.emit(id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, box)
	return nil
}

// PodSandboxStatus fails with NotFound for an unknown sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	box := r.sandboxes[id]
	if box == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find sandbox %q: not found", id)
	}
	response := &runtimeapi.PodSandboxStatusResponse{
		Status:             box.status(),
		ContainersStatuses: box.containerStatuses(),
		Timestamp:          r.clock.Now().UnixNano(),
	}
	if verbose {
		response.Info = verboseInfo(map[string]any{"pid": box.pid})
	}
	return response, nil
}

func (b *sandbox) state() runtimeapi.PodSandboxState {
	if b.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (b *sandbox) status() *runtimeapi.PodSandboxStatus {
	network := &runtimeapi.PodSandboxNetworkStatus{}
	if b.ready && b.address.IsValid() {
		network.Ip = b.address.String()
	}
	return &runtimeapi.PodSandboxStatus{
		Id:        b.id,
		Metadata:  b.config.Metadata,
		State:     b.state(),
		CreatedAt: b.created,
		Network:   network,
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: b.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels:         b.config.Labels,
		Annotations:    b.config.Annotations,
		RuntimeHandler: b.handler,
	}
}

func (b *sandbox) containerStatuses() []*runtimeapi.ContainerStatus {
	statuses := make([]*runtimeapi.ContainerStatus, 0, len(b.members))
	for _, c := range b.members {
		statuses = append(statuses, c.status())
	}
	return statuses
}

// ListPodSandbox lists oldest first.
func (r *Runtime) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	candidates, named := r.podSandboxes.asked(filter.GetLabelSelector())
	if !named {
		candidates = r.sortedSandboxes()
	}
	found := []*runtimeapi.PodSandbox{}
	for _, box := range candidates {
		if filter.GetId() != "" && filter.Id != box.id ||
			filter.GetState() != nil && filter.State.State != box.state() ||
			!hasLabels(box.config.Labels, filter.GetLabelSelector()) {
			continue
		}
		found = append(found, &runtimeapi.PodSandbox{
			Id:             box.id,
			Metadata:       box.config.Metadata,
			State:          box.state(),
			CreatedAt:      box.created,
			Labels:         box.config.Labels,
			Annotations:    box.config.Annotations,
			RuntimeHandler: box.handler,
		})
	}
	return found, nil
}

func (r *Runtime) sortedSandboxes() []*sandbox {
	all := make([]*sandbox, 0, len(r.sandboxes))
	for _, box := range r.sandboxes {
		all = append(all, box)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].serial < all[j].serial })
	return all
}

// UpdatePodSandboxResources records nothing: there are no limits to enforce.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[request.GetPodSandboxId()] == nil {
		return nil, status.Errorf(codes.NotFound, "failed to find sandbox %q: not found", request.GetPodSandboxId())
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

func hasLabels(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// verboseInfo has containerd's shape: one key "info" with a JSON object.
func verboseInfo(fields map[string]any) map[string]string {
	text, err := json.Marshal(fields)
	if err != nil {
		return nil
	}
	return map[string]string{"info": string(text)}
}

// contextStatus gives a context's error the form in which grpc reports it.
func contextStatus(err error) error { return status.FromContextError(err).Err() }

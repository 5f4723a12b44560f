package sim

import (
	"context"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subscriber holds the events that one reader has not taken yet. A slow reader
// loses nothing and holds up nobody.
type subscriber struct {
	mu      sync.Mutex
	waiting []*runtimeapi.ContainerEventResponse
	arrived chan struct{} // capacity 1
}

// GetContainerEvents sends every event from now on into the channel and returns
// when ctx ends. The callback runs once the events are being recorded; it gets
// nil, for there is no connection.
func (r *Runtime) GetContainerEvents(ctx context.Context, events chan *runtimeapi.ContainerEventResponse, established func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	reader := &subscriber{arrived: make(chan struct{}, 1)}
	r.mu.Lock()
	r.listeners[reader] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.listeners, reader)
		r.mu.Unlock()
	}()
	if established != nil {
		established(nil)
	}
	for {
		for _, event := range reader.take() {
			select {
			case events <- event:
			case <-ctx.Done():
				return contextStatus(ctx.Err())
			}
		}
		select {
		case <-reader.arrived:
		case <-ctx.Done():
			return contextStatus(ctx.Err())
		}
	}
}

func (s *subscriber) take() []*runtimeapi.ContainerEventResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.waiting
	s.waiting = nil
	return taken
}

func (s *subscriber) add(event *runtimeapi.ContainerEventResponse) {
	s.mu.Lock()
	s.waiting = append(s.waiting, event)
	s.mu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// emit tells all readers. Callers hold r.mu, so the order of events is the order
// of what happened.
func (r *Runtime) emit(id string, kind runtimeapi.ContainerEventType, box *sandbox) {
	if len(r.listeners) == 0 {
		return
	}
	event := &runtimeapi.ContainerEventResponse{
		ContainerId:        id,
		ContainerEventType: kind,
		CreatedAt:          r.clock.Now().UnixNano(),
		PodSandboxStatus:   box.status(),
		ContainersStatuses: box.containerStatuses(),
	}
	for reader := range r.listeners {
		reader.add(event)
	}
}

package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/services/events/v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

// ofContainers lets through the ends of processes in CRI's namespace.
const ofContainers = `namespace==k8s.io,topic=="/tasks/exit"`

// Exits calls exited with the id of each container whose process has ended, as soon as its
// shim says so. CRI tells of it only when the rest of the container is cleared away, some
// tens of milliseconds later. It blocks until ctx ends or containerd does, and returns why;
// what ends while nobody listens is not told. exited must not block.
func (s *Supervisor) Exits(ctx context.Context, exited func(container string)) error {
	conn, err := dial(s.Endpoint())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "k8s.io")
	stream, err := events.NewEventsClient(conn).Subscribe(ctx, &events.SubscribeRequest{Filters: []string{ofContainers}})
	if err != nil {
		return fmt.Errorf("subscribe to containerd's events: %w", err)
	}
	for {
		envelope, err := stream.Recv()
		if err != nil {
			return err
		}
		container, process, err := whoExited(envelope.GetEvent().GetValue())
		if err != nil {
			return fmt.Errorf("an event of containerd: %w", err)
		}
		if process == container { // others are commands that were executed in it
			exited(container)
		}
	}
}

// whoExited reads the first two fields of a TaskExit: container_id = 1, id = 2. containerd's
// own package of events would bring two libraries along.
func whoExited(event []byte) (container, process string, err error) {
	for len(event) > 0 {
		field, kind, n := protowire.ConsumeTag(event)
		if n < 0 {
			return "", "", protowire.ParseError(n)
		}
		event = event[n:]
		n = protowire.ConsumeFieldValue(field, kind, event)
		if n < 0 {
			return "", "", protowire.ParseError(n)
		}
		if kind == protowire.BytesType {
			text, _ := protowire.ConsumeString(event)
			switch field {
			case 1:
				container = text
			case 2:
				process = text
			}
		}
		event = event[n:]
	}
	return container, process, nil
}

package containerd

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// Removing is a runtime whose removals also succeed where a start was taken back so
// late that its process outlived it: containerd then counts the container as ended,
// and refuses to remove it for the process that it has. The start of the supervision
// looks for such processes too, but a mend that starts again at once may look before
// containerd is done with the requests of the one before.
func (s *Supervisor) Removing(runtime internalapi.RuntimeService) internalapi.RuntimeService {
	return removing{RuntimeService: runtime, end: s.endHalfStarted}
}

type removing struct {
	internalapi.RuntimeService
	end func(ctx context.Context) error
}

// RemoveContainer implements internalapi.RuntimeService.
func (r removing) RemoveContainer(ctx context.Context, id string) error {
	return r.again(ctx, func() error { return r.RuntimeService.RemoveContainer(ctx, id) })
}

// RemovePodSandbox implements internalapi.RuntimeService.
func (r removing) RemovePodSandbox(ctx context.Context, id string) error {
	return r.again(ctx, func() error { return r.RuntimeService.RemovePodSandbox(ctx, id) })
}

func (r removing) again(ctx context.Context, remove func() error) error {
	err := remove()
	if status.Code(err) != codes.FailedPrecondition {
		return err
	}
	if ended := r.end(ctx); ended != nil {
		return errors.Join(err, ended)
	}
	return remove()
}

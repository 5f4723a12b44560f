package containerd

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// refusing is a runtime that refuses to remove a container for its process.
type refusing struct {
	internalapi.RuntimeService
	process bool
	removed int
	other   error
}

func (r *refusing) RemoveContainer(context.Context, string) error { return r.remove() }

func (r *refusing) RemovePodSandbox(context.Context, string) error { return r.remove() }

func (r *refusing) remove() error {
	switch {
	case r.other != nil:
		return r.other
	case r.process:
		return status.Error(codes.FailedPrecondition, "cannot delete running task")
	}
	r.removed++
	return nil
}

func TestARemovalEndsTheProcessThatStandsInItsWay(t *testing.T) {
	for name, remove := range map[string]func(removing) error{
		"container": func(r removing) error { return r.RemoveContainer(t.Context(), "id") },
		"sandbox":   func(r removing) error { return r.RemovePodSandbox(t.Context(), "id") },
	} {
		fake, ends := &refusing{process: true}, 0
		end := func(context.Context) error {
			ends++
			fake.process = false
			return nil
		}
		if err := remove(removing{fake, end}); err != nil || ends != 1 || fake.removed != 1 {
			t.Errorf("%s with a process: %v, ended %d times, removed %d times", name, err, ends, fake.removed)
		}
		if err := remove(removing{fake, end}); err != nil || ends != 1 || fake.removed != 2 {
			t.Errorf("%s without one: %v, ended %d times, removed %d times", name, err, ends, fake.removed)
		}
		fake.other = errors.New("no")
		if err := remove(removing{fake, end}); !errors.Is(err, fake.other) || ends != 1 {
			t.Errorf("%s with another fault: %v, ended %d times", name, err, ends)
		}
		fake.other, fake.process = nil, true
		fault := errors.New("does not end")
		if err := remove(removing{fake, func(context.Context) error { return fault }}); !errors.Is(err, fault) {
			t.Errorf("%s with a process that does not end: %v", name, err)
		}
	}
}

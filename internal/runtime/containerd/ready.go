package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dial opens a connection to containerd that tries again every few milliseconds: it is
// only used while containerd comes up.
func dial(endpoint string) (*grpc.ClientConn, error) {
	return grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
}

// waitReady returns nil when this containerd says over CRI that its runtime is ready,
// and an error when it ends before or takes longer than limit.
func (s *Supervisor) waitReady(ctx context.Context, r *running, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-r.exited:
			cancel()
		case <-ended:
		}
	}()
	conn, err := dial(s.Endpoint())
	if err != nil {
		return err
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	for {
		status, err := client.Status(ctx, &runtimeapi.StatusRequest{}, grpc.WaitForReady(true))
		if err == nil {
			err = runtimeReady(status)
		}
		if err == nil {
			return nil
		}
		select {
		case <-r.exited:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func runtimeReady(status *runtimeapi.StatusResponse) error {
	for _, c := range status.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			return fmt.Errorf("runtime not ready: %s: %s", c.GetReason(), c.GetMessage())
		}
	}
	return nil
}

package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// tcp succeeds when a connection opens.
func (p *prober) tcp(ctx context.Context, port intstr.IntOrString, container *v1.Container, host string, timeout time.Duration) attempt {
	number, err := portOf(port, container)
	if err != nil {
		return errored(err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := p.dial(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(number)))
	if err != nil {
		return failed(err.Error())
	}
	if err := conn.Close(); err != nil {
		p.log.Debug("probe connection not closed", "err", err)
	}
	return succeeded("")
}

// grpc asks the health service of gRPC.
func (p *prober) grpc(ctx context.Context, action *v1.GRPCAction, host string, timeout time.Duration) attempt {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	address := net.JoinHostPort(host, strconv.Itoa(int(action.Port)))
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUserAgent(userAgent()),
		grpc.WithTransportCredentials(grpcCredentials(action)),
		grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) { return p.dial(ctx, "tcp", at) }))
	if err != nil {
		return failed(fmt.Sprintf("error: failed to connect service at %q: %+v", address, err))
	}
	defer conn.Close()
	if err := waitConnected(ctx, conn); err != nil {
		return failed(fmt.Sprintf("timeout: failed to connect service %q within %v: %+v", address, timeout, err))
	}
	service := ""
	if action.Service != nil {
		service = *action.Service
	}
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return failed(grpcFailure(err, timeout))
	}
	if answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return failed(fmt.Sprintf("service unhealthy (responded with %q)", answer.GetStatus()))
	}
	return succeeded("service healthy")
}

func grpcCredentials(action *v1.GRPCAction) credentials.TransportCredentials {
	if action.Mode != nil && *action.Mode == v1.GRPCProbeModeTLS {
		return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	return insecure.NewCredentials()
}

// waitConnected waits as long as the context lets it: a refused connection is
// tried again, as with kubelet.
func waitConnected(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if state == connectivity.Idle {
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

func grpcFailure(err error, timeout time.Duration) string {
	switch known := status.Convert(err); known.Code() {
	case codes.Unimplemented:
		return "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + known.Message()
	case codes.DeadlineExceeded:
		return fmt.Sprintf("timeout: health rpc did not complete within %v", timeout)
	default:
		return fmt.Sprintf("error: health rpc probe failed: %+v", err)
	}
}

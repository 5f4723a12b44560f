package agent

import (
	"context"
	"net"
)

// serve serves the kubelet's HTTP API.
func (a *Agent) serve(ctx context.Context) {
	<-ctx.Done()
}

func port(l net.Listener) int32 {
	if l == nil {
		return 0
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		return int32(tcp.Port)
	}
	return 0
}

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"mend/internal/network/catalog"
)

// healthPorts answers load balancers that ask whether this node has endpoints of a
// Service with externalTrafficPolicy Local.
type healthPorts struct {
	log *slog.Logger
	// listen is net.Listen, but in tests.
	listen func(network, address string) (net.Listener, error)

	mu    sync.Mutex
	byKey map[catalog.Key]*healthPort
}

type healthPort struct {
	key    catalog.Key
	port   uint16
	local  atomic.Int64
	server *http.Server
}

// set makes a Service's health check port answer, or not any more when h is nil.
func (p *healthPorts) set(key catalog.Key, h *Health) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := p.byKey[key]
	if open != nil && (h == nil || h.Port != open.port) {
		_ = open.server.Close()
		delete(p.byKey, key)
		open = nil
	}
	if h == nil {
		return nil
	}
	if open == nil {
		var err error
		if open, err = p.open(key, h.Port); err != nil {
			return err
		}
		p.byKey[key] = open
	}
	open.local.Store(int64(h.LocalEndpoints))
	return nil
}

func (p *healthPorts) open(key catalog.Key, port uint16) (*healthPort, error) {
	listener, err := p.listen("tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, fmt.Errorf("health check port %d of Service %s: %w", port, key, err)
	}
	h := &healthPort{key: key, port: port}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	go func() {
		if err := h.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("health check port ended", "service", key, "port", port, "err", err)
		}
	}()
	return h, nil
}

// closeAll closes every port.
func (p *healthPorts) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, open := range p.byKey {
		_ = open.server.Close()
		delete(p.byKey, key)
	}
}

// ServeHTTP answers as kube-proxy does: 200 with endpoints, 503 without, and the count.
func (h *healthPort) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n := h.local.Load()
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(n, 10))
	if n == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}",
		h.key.Namespace, h.key.Name, n)
}

// listenTCP is net.Listen under a limit.
func listenTCP(network, address string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return (&net.ListenConfig{}).Listen(ctx, network, address)
}

package sim

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Dial connects to a simulated Pod: addresses of the Pod range are answered in
// memory, with the errors that a network would give; other addresses reach Pods
// on the host's network that listen on the port, or else are dialled for real.
// It has the signature of net.Dialer.DialContext.
func (r *Runtime) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, portErr := strconv.Atoi(portText)
	ip, ipErr := netip.ParseAddr(host)
	if portErr != nil || ipErr != nil {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	switch err := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, dialError(ip, port, os.ErrDeadlineExceeded) // "i/o timeout"
	case err != nil:
		return nil, dialError(ip, port, err)
	}
	r.mu.Lock()
	box := r.byAddress[ip]
	simulated := r.podRange.within.Contains(ip)
	hosts := make([]*sandbox, 0, len(r.onHost))
	for onHost := range r.onHost {
		hosts = append(hosts, onHost)
	}
	r.mu.Unlock()
	switch {
	case box != nil:
		conn, err := r.connect(box, port)
		if err != nil {
			return nil, dialError(ip, port, err)
		}
		return conn, nil
	case simulated:
		return nil, dialError(ip, port, os.NewSyscallError("connect", syscall.EHOSTUNREACH))
	}
	for _, onHost := range hosts {
		if c := r.listening(onHost, port, true); c != nil {
			return r.serve(c, ip, port), nil
		}
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func dialError(ip netip.Addr, port int, err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(port))), Err: err}
}

// connect opens a connection to a port of the sandbox.
func (r *Runtime) connect(box *sandbox, port int) (net.Conn, error) {
	c := r.listening(box, port, false)
	if c == nil {
		return nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
	}
	return r.serve(c, box.address, port), nil
}

// listening finds the running container that listens on the port: one that names
// it, or else (unless named is asked for) one that listens on every port.
func (r *Runtime) listening(box *sandbox, port int, named bool) *container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var any *container
	for _, c := range box.members {
		listen := c.traits.listen
		switch {
		case c.state != runtimeapi.ContainerState_CONTAINER_RUNNING || listen.Refuse:
		case slices.Contains(listen.Ports, int32(port)) && (c.isServer() || !listen.Sample):
			return c
		case len(listen.Ports) == 0 && c.isServer() && any == nil:
			any = c
		}
	}
	if named {
		return nil
	}
	return any
}

// serve answers HTTP on a new connection, plain or TLS, version 1 or 2. Its
// goroutines end with the connection.
func (r *Runtime) serve(c *container, ip netip.Addr, port int) net.Conn {
	client, server := net.Pipe()
	at := net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(port)))
	from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.gateway(), 1))
	go func() {
		peeked := bufio.NewReader(server)
		first, err := peeked.Peek(1)
		if err != nil {
			server.Close()
			return
		}
		var conn net.Conn = &pipeConn{Conn: server, reader: peeked, local: at, remote: from}
		if first[0] == 0x16 { // a TLS handshake
			conn = tls.Server(conn, tlsConfig())
		}
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
		protocols.SetUnencryptedHTTP2(true)
		web := &served{runtime: r, c: c}
		httpServer := &http.Server{Handler: web.withHealthService(web.handler()), Protocols: protocols}
		httpServer.Serve(&singleListener{conn: conn, gone: make(chan struct{})})
	}()
	return &pipeConn{Conn: client, reader: client, local: from, remote: at}
}

// gateway is the address from which a node reaches its Pods.
func (r *Runtime) gateway() netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.podRange.within.Addr().Next()
}

// pipeConn is an in-memory connection with addresses.
type pipeConn struct {
	net.Conn
	reader        io.Reader
	local, remote net.Addr
}

func (p *pipeConn) Read(into []byte) (int, error) { return p.reader.Read(into) }
func (p *pipeConn) LocalAddr() net.Addr           { return p.local }
func (p *pipeConn) RemoteAddr() net.Addr          { return p.remote }

// singleListener hands out one connection and ends when it is closed.
type singleListener struct {
	mu     sync.Mutex
	conn   net.Conn
	given  bool
	closed sync.Once
	gone   chan struct{}
}

func (l *singleListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	given := l.given
	l.given = true
	l.mu.Unlock()
	if given {
		<-l.gone
		return nil, net.ErrClosed
	}
	if secure, ok := l.conn.(*tls.Conn); ok {
		// http.Server wants the tls.Conn itself, to see the protocol agreed on.
		if err := secure.HandshakeContext(context.Background()); err != nil {
			secure.Close()
			return nil, err
		}
		secure.NetConn().(*pipeConn).onClose(l.end)
		return secure, nil
	}
	l.conn.(*pipeConn).onClose(l.end)
	return l.conn, nil
}

func (l *singleListener) end() { l.closed.Do(func() { close(l.gone) }) }

// Close is called by http.Server when Serve returns.
func (l *singleListener) Close() error { return nil }

// Addr is the connection's own.
func (l *singleListener) Addr() net.Addr { return l.conn.LocalAddr() }

// onClose wraps the connection so that do runs once it is closed.
func (p *pipeConn) onClose(do func()) { p.Conn = &closing{Conn: p.Conn, do: do} }

type closing struct {
	net.Conn
	do func()
}

func (c *closing) Close() error {
	defer c.do()
	return c.Conn.Close()
}

// withHealthService answers the health service of gRPC, as /healthz would.
func (s *served) withHealthService(next http.Handler) http.Handler {
	var once sync.Once
	var server *grpc.Server
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			next.ServeHTTP(w, r)
			return
		}
		once.Do(func() {
			server = grpc.NewServer()
			healthpb.RegisterHealthServer(server, &healthService{served: s})
		})
		server.ServeHTTP(w, r)
	})
}

type healthService struct {
	healthpb.UnimplementedHealthServer
	served *served
}

// Check answers for every service name.
func (h *healthService) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if h.served.healthStatus() >= http.StatusBadRequest {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// tlsConfig holds a certificate that nobody should trust; probes do not ask.
var tlsConfig = sync.OnceValue(func() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return &tls.Config{}
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "simulated"},
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		DNSNames:     []string{"simulated"},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return &tls.Config{}
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
		NextProtos:   []string{"h2", "http/1.1"},
	}
})

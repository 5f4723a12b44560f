package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// streams is the streaming server: the one that real runtimes use, on a loopback
// port, opened when it is first asked for. Its addresses hold a random token that
// works once.
type streams struct {
	mu     sync.Mutex
	server streaming.Server
	http   *http.Server
}

func (r *Runtime) streamServer() (streaming.Server, error) {
	s := &r.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return s.server, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	server, err := streaming.NewServer(config, (*streamed)(r))
	if err != nil {
		listener.Close()
		return nil, err
	}
	s.server, s.http = server, &http.Server{Handler: server}
	go s.http.Serve(listener)
	return server, nil
}

func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		s.http.Close()
		s.server, s.http = nil, nil
	}
}

// Exec returns the address at which the command's streams are served.
func (r *Runtime) Exec(_ context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, err := r.running(request.GetContainerId()); err != nil {
		return nil, err
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetExec(request)
}

// Attach returns the address at which the container's streams are served.
func (r *Runtime) Attach(_ context.Context, request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if _, err := r.running(request.GetContainerId()); err != nil {
		return nil, err
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetAttach(request)
}

// PortForward returns the address at which connections to the sandbox are taken.
func (r *Runtime) PortForward(_ context.Context, request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	r.mu.Lock()
	box := r.sandboxes[request.GetPodSandboxId()]
	r.mu.Unlock()
	if box == nil {
		return nil, notFound(request.GetPodSandboxId())
	}
	server, err := r.streamServer()
	if err != nil {
		return nil, err
	}
	return server.GetPortForward(request)
}

// streamed is the Runtime as the streaming server calls it.
type streamed Runtime

// Exec runs a command with the caller's streams.
func (s *streamed) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	r := (*Runtime)(s)
	c, err := r.running(id)
	if err != nil {
		return err
	}
	go ignore(resize)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdin, stdout, stderr := terminal(in, out, errOut, tty)
	code, err := r.execute(ctx, c, cmd, stdin, stdout, stderr, prompt(tty, stdout))
	if err != nil {
		return err
	}
	if code != 0 {
		return &utilexec.CodeExitError{Err: fmt.Errorf("command %q exited with %d", strings.Join(cmd, " "), code), Code: code}
	}
	return nil
}

// ignore takes terminal sizes until there are no more: to the commands here a
// terminal of any size looks the same. Without a terminal the channel is nil.
func ignore(sizes <-chan remotecommand.TerminalSize) {
	if sizes == nil {
		return
	}
	for {
		if _, more := <-sizes; !more {
			return
		}
	}
}

// Attach shows the container's output until it ends or the caller leaves. If the
// container reads standard input and runs a shell, the caller talks to it.
func (s *streamed) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	r := (*Runtime)(s)
	c, err := r.running(id)
	if err != nil {
		return err
	}
	go ignore(resize)
	if in != nil && c.config.Stdin && isInteractive(c.argv) {
		return r.attachShell(ctx, c, in, out, errOut, tty)
	}
	stdout, stderr := writerOrNil(out), writerOrNil(errOut)
	if tty {
		stderr = stdout
	}
	watched := c.watchOutput()
	defer c.unwatchOutput(watched)
	ended := r.ended(c)
	for {
		select {
		case <-watched.arrived:
		case <-ended:
			return watched.drain(stdout, stderr)
		case <-ctx.Done():
			return nil
		}
		if err := watched.drain(stdout, stderr); err != nil {
			return nil // the caller has left
		}
	}
}

func writerOrNil(w io.WriteCloser) io.Writer {
	if w == nil {
		return nil
	}
	return w
}

// attachShell is `kubectl run -it … sh`: the container ends when its shell does.
func (r *Runtime) attachShell(ctx context.Context, c *container, in io.Reader, out, errOut io.WriteCloser, tty bool) error {
	stdin, stdout, stderr := terminal(in, out, errOut, tty)
	program, err := r.newShell(c, c.argv, stdin,
		io.MultiWriter(stdout, r.output(c, runtimeapi.Stdout)), io.MultiWriter(stderr, r.output(c, runtimeapi.Stderr)))
	if err != nil {
		return err
	}
	code, err := r.converse(ctx, program, prompt(tty, stdout))
	if err != nil {
		return err
	}
	r.end(c, ending{code: int32(code)})
	return nil
}

// ended is closed when the container has ended.
func (r *Runtime) ended(c *container) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			close(c.done)
		}
	}
	return c.done
}

// PortForward copies between the stream and whatever listens on the port.
func (s *streamed) PortForward(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	r := (*Runtime)(s)
	r.mu.Lock()
	box := r.sandboxes[sandboxID]
	r.mu.Unlock()
	if box == nil {
		return notFound(sandboxID)
	}
	conn, err := r.connect(box, int(port))
	if err != nil {
		return fmt.Errorf("failed to execute portforward in network namespace: failed to connect to localhost:%d inside namespace %q, IPv4: %w", port, sandboxID, err)
	}
	defer conn.Close()
	outward := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, stream)
		conn.Close()
		outward <- err
	}()
	_, err = io.Copy(stream, conn)
	stream.Close()
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF) {
		err = nil
	}
	select {
	case <-outward:
	case <-ctx.Done():
	}
	return err
}

package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mend/internal/network/dns"
)

const (
	// talkLimit is how long the program may take to answer: a view of 5,000 Services with
	// ten endpoints each is read in a tenth of a second.
	talkLimit = 20 * time.Second
	// startLimit is how long a started program may take to open its socket.
	startLimit = 10 * time.Second
	// stopLimit is how long it may take to end before it is killed.
	stopLimit = 7 * time.Second
)

// program is a connection to the running program.
type program struct {
	conn   *net.UnixConn
	encode *json.Encoder
	hello  dns.Hello
	// answers is closed when the program, or the connection, has ended.
	answers chan dns.Done
	gone    chan struct{}
}

// errNone says that no program listens at the socket.
var errNone = errors.New("the DNS program does not run")

// connect takes up the program that listens at the socket.
func connect(socket string) (*program, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).Dial("unix", socket)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, errNone
	}
	if err != nil {
		return nil, err
	}
	p := &program{conn: conn.(*net.UnixConn), encode: json.NewEncoder(conn), answers: make(chan dns.Done, 1), gone: make(chan struct{})}
	decode := json.NewDecoder(conn)
	if err = p.conn.SetDeadline(time.Now().Add(talkLimit)); err == nil {
		err = decode.Decode(&p.hello)
	}
	if err != nil {
		p.kill()
		p.close()
		return nil, fmt.Errorf("the DNS program does not speak, and was killed: %w", err)
	}
	go p.listen(decode)
	return p, nil
}

func (p *program) close() { p.conn.Close() }

// listen passes answers on until the connection ends.
func (p *program) listen(decode *json.Decoder) {
	defer close(p.gone)
	_ = p.conn.SetReadDeadline(time.Time{})
	for {
		var done dns.Done
		if decode.Decode(&done) != nil {
			return
		}
		p.answers <- done
	}
}

var errEnded = errors.New("the DNS program has ended")

// tell sends a batch and waits until it has taken effect.
func (p *program) tell(b dns.Batch) (dns.Done, error) {
	if err := p.conn.SetWriteDeadline(time.Now().Add(talkLimit)); err != nil {
		return dns.Done{}, err
	}
	if err := p.encode.Encode(b); err != nil {
		return dns.Done{}, fmt.Errorf("tell the DNS program: %w", err)
	}
	select {
	case done := <-p.answers:
		return done, check(b, done)
	case <-p.gone:
		select {
		case done := <-p.answers: // its last word
			return done, check(b, done)
		default:
			return dns.Done{}, errEnded
		}
	case <-time.After(talkLimit):
		return dns.Done{}, errors.New("the DNS program does not answer")
	}
}

func check(b dns.Batch, done dns.Done) error {
	switch {
	case done.Error != "":
		return errors.New("the DNS program cannot answer: " + done.Error)
	case !b.Stop && done.Version != b.Version:
		return fmt.Errorf("the DNS program is at version %d, not %d", done.Version, b.Version)
	}
	return nil
}

// sockets asks the program that listens at a socket for its own sockets, UDP and TCP, on
// a connection of its own. None is no error.
func sockets(socket string) ([]*os.File, error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(talkLimit)); err != nil {
		return nil, err
	}
	var hello dns.Hello
	if err := json.NewDecoder(conn).Decode(&hello); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(conn).Encode(dns.Batch{Hand: true}); err != nil {
		return nil, err
	}
	rights := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(make([]byte, 64), rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "dns"))
		}
	}
	return files, nil
}

// stop ends the program and returns when it has ended.
func (p *program) stop() error {
	defer p.close()
	fd, err := p.process()
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	_, err = p.tell(dns.Batch{Stop: true})
	if err == nil || errors.Is(err, errEnded) {
		err = ended(fd, stopLimit)
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, ignoreGone(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)), ended(fd, stopLimit))
}

// ended waits for a process's end.
func ended(fd int, limit time.Duration) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for until := time.Now().Add(limit); ; {
		n, err := unix.Poll(fds, int(max(time.Until(until).Milliseconds(), 0)))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("the DNS program does not end")
		default:
			return nil
		}
	}
}

// kill kills the process at the other end of the connection.
func (p *program) kill() {
	if fd, err := p.process(); err == nil {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		unix.Close(fd)
	}
}

// process takes hold of the process at the other end of the connection, which the kernel
// knows. It is still that one: a connection without it would have ended, and says hello
// only once.
func (p *program) process() (fd int, err error) {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return -1, err
	}
	return unix.PidfdOpen(int(cred.Pid), 0)
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// start starts a program and returns when it speaks. Inherited are the sockets of the one
// that it replaces.
func start(ctx context.Context, command []string, o dns.Options, logPath string, inherited []*os.File) (*program, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append(slices.Clone(command), o.Args()...)
	if len(inherited) == 2 {
		args = append(args, dns.InheritArg)
	}
	process, err := os.StartProcess(command[0], args, &os.ProcAttr{
		Dir: "/", Env: environment(), Files: append([]*os.File{null, log, log}, inherited...), Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start the DNS program: %w", err)
	}
	ended := make(chan string, 1)
	go func() {
		state, err := process.Wait()
		if err != nil {
			ended <- err.Error()
			return
		}
		ended <- state.String()
	}()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		p, err := connect(o.Socket)
		if err == nil && p.hello.PID == process.Pid {
			return p, nil
		}
		if err == nil {
			p.close() // the one that is to be replaced
		}
		select {
		case how := <-ended:
			return nil, fmt.Errorf("the DNS program ended at once: %s: %s", how, lastLine(logPath))
		case <-ctx.Done():
			_ = process.Kill()
			return nil, fmt.Errorf("the DNS program did not come up: %w: %s", ctx.Err(), lastLine(logPath))
		case <-tick.C:
		}
	}
}

// environment is what the program needs of ours.
func environment() []string {
	var kept []string
	for _, name := range []string{"PATH", "GODEBUG", "GOMEMLIMIT", "LANG", "TZ"} {
		if value, set := os.LookupEnv(name); set {
			kept = append(kept, name+"="+value)
		}
	}
	return kept
}

// lastLine is the end of the program's log.
func lastLine(path string) string {
	const most = 500
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

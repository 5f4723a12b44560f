package dns

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Command is the name under which a program that is more than this one runs it.
const Command = "__dns"

const (
	// lookAround is how often the program looks whether its socket's file is still there.
	lookAround = 10 * time.Second
	// stopGrace is how long questions that have come in may still take.
	stopGrace = 5 * time.Second
)

// Options are the program's.
type Options struct {
	// Zone is the cluster's domain.
	Zone string
	// Address is where to listen, over UDP and TCP. It need not be there yet.
	Address netip.Addr
	// Ports are tried in this order; 0 is any.
	Ports []uint16
	// Socket is the path of the unix socket on which batches come in.
	Socket string
	// Resolvers is the path of the resolv.conf that names whom to forward to.
	Resolvers string
	// Build tells programs of different makes apart.
	Build string
	// Inherit says that file descriptors 3 and 4 are the sockets of the program that this
	// one replaces.
	Inherit bool
}

// InheritArg is the argument that sets Inherit.
const InheritArg = "-inherit"

// Args are the command line that gives a program these options.
func (o Options) Args() []string {
	var ports []string
	for _, p := range o.Ports {
		ports = append(ports, fmt.Sprint(p))
	}
	return []string{"-zone", o.Zone, "-address", o.Address.String(), "-ports", strings.Join(ports, ","),
		"-socket", o.Socket, "-resolvers", o.Resolvers, "-build", o.Build}
}

// parse reads Args.
func parse(args []string) (Options, error) {
	var o Options
	flags := flag.NewFlagSet(Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.Zone, "zone", "cluster.local", "")
	flags.TextVar(&o.Address, "address", netip.Addr{}, "")
	ports := flags.String("ports", "53", "")
	flags.StringVar(&o.Socket, "socket", "", "")
	flags.StringVar(&o.Resolvers, "resolvers", "/etc/resolv.conf", "")
	flags.StringVar(&o.Build, "build", "", "")
	flags.BoolVar(&o.Inherit, InheritArg[1:], false, "")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	for text := range strings.SplitSeq(*ports, ",") {
		var port uint16
		if _, err := fmt.Sscan(text, &port); err != nil {
			return o, fmt.Errorf("-ports %q: %w", text, err)
		}
		o.Ports = append(o.Ports, port)
	}
	if o.Socket == "" || !o.Address.IsValid() {
		return o, errors.New("-socket and -address are needed")
	}
	return o, nil
}

// Main runs the program with a command line and returns its exit code. It runs until it
// is told to stop.
func Main(args []string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	o, err := parse(args)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE) // of a terminal that mend was started from
		err = Run(ctx, o, log)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mend dns:", err)
		return 1
	}
	return 0
}

// Hello is what the program says first to whoever connects to its socket.
type Hello struct {
	PID   int    `json:"pid"`
	Build string `json:"build"`
}

// Done is its answer to a batch.
type Done struct {
	Version uint64 `json:"version"`
	// Listen is where questions are answered: from the first full batch on.
	Listen netip.AddrPort `json:"listen"`
	// Error says why they are not.
	Error string `json:"error,omitempty"`
}

// server is the running program.
type server struct {
	o     Options
	log   *slog.Logger
	view  *view
	stop  context.CancelFunc
	ended chan error // of answering

	socket *net.UnixListener
	inode  uint64

	mu       sync.Mutex
	at       netip.AddrPort
	packets  net.PacketConn
	listener net.Listener
	servers  []*dns.Server
}

// Run answers from the first full batch on, until ctx ends or a batch says stop, and then
// what has come in before. One that takes over does not answer what it does not know yet.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &server{o: o, log: log, view: newView(), stop: stop, ended: make(chan error, 2)}
	if err := s.openSocket(); err != nil {
		return err
	}
	defer s.closeSocket()
	go s.accept(ctx)
	go s.watchSocket(ctx)
	select {
	case <-ctx.Done():
	case err := <-s.ended:
		return fmt.Errorf("stopped answering: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return shutDown(s.servers)
}

// answer begins to answer, if it has not begun, and returns where.
func (s *server) answer(ctx context.Context) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsValid() {
		return s.at, nil
	}
	packets, listener, err := s.sockets(ctx)
	if err != nil {
		return netip.AddrPort{}, err
	}
	h := &handler{
		answerer: answerer{zone: strings.ToLower(dns.Fqdn(s.o.Zone)), view: s.view, self: []netip.Addr{s.o.Address}},
		forward:  newForwarder(s.o.Resolvers, []netip.Addr{s.o.Address}), cache: newCache(), log: s.log,
	}
	s.packets, s.listener, s.at = packets, listener, netip.MustParseAddrPort(packets.LocalAddr().String())
	s.servers = []*dns.Server{
		{PacketConn: packets, Handler: h},
		{Listener: listener, Handler: h, IdleTimeout: func() time.Duration { return 10 * time.Second }},
	}
	for _, one := range s.servers {
		go func() {
			if err := one.ActivateAndServe(); err != nil && ctx.Err() == nil {
				s.ended <- err
			}
		}()
	}
	s.log.Info("answering", "zone", s.o.Zone, "at", s.at, "pid", os.Getpid())
	return s.at, nil
}

// shutDown answers what has been read already and ends.
func shutDown(servers []*dns.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	var all []error
	for _, one := range servers {
		if err := one.ShutdownContext(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// sockets are those of the program before, if they are where this one is to listen, or
// new ones.
func (s *server) sockets(ctx context.Context) (net.PacketConn, net.Listener, error) {
	const udp, tcp = 3, 4
	if s.o.Inherit {
		packets, err := net.FilePacketConn(os.NewFile(udp, "udp"))
		if err == nil {
			var listener net.Listener
			listener, err = net.FileListener(os.NewFile(tcp, "tcp"))
			if err == nil && netip.MustParseAddrPort(packets.LocalAddr().String()).Addr() == s.o.Address {
				return packets, listener, nil
			}
			packets.Close()
		}
		s.log.Info("the sockets of the program before are not used", "err", err)
	}
	return listen(ctx, s.o)
}

// hand sends the sockets.
func (s *server) hand(conn *net.UnixConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var files []int
	if s.at.IsValid() {
		udp, err := s.packets.(*net.UDPConn).File()
		if err != nil {
			return err
		}
		defer udp.Close()
		tcp, err := s.listener.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		defer tcp.Close()
		files = []int{int(udp.Fd()), int(tcp.Fd())}
	}
	_, _, err := conn.WriteMsgUnix([]byte("{}\n"), unix.UnixRights(files...), nil)
	return err
}

// listen opens UDP and TCP at one port. A program of ours that does not hand its sockets
// on may have it open too.
func listen(ctx context.Context, o Options) (net.PacketConn, net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		controlErr := raw.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1), // the bridge may come later
			)
		})
		return errors.Join(controlErr, err)
	}}
	var all []error
	for _, port := range o.Ports {
		listener, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(o.Address, port).String())
		if err != nil {
			all = append(all, err)
			continue
		}
		packets, err := config.ListenPacket(ctx, "udp", listener.Addr().String())
		if err != nil {
			listener.Close()
			all = append(all, err)
			continue
		}
		return packets, listener, nil
	}
	return nil, nil, errors.Join(all...)
}

// openSocket puts the unix socket in place of an older program's, at once.
func (s *server) openSocket() error {
	aside := fmt.Sprintf("%s.%d", s.o.Socket, os.Getpid())
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: aside, Net: "unix"})
	if err != nil {
		return err
	}
	socket.SetUnlinkOnClose(false) // the path may be another's by then
	s.socket = socket
	if err := errors.Join(os.Chmod(aside, 0o600), os.Rename(aside, s.o.Socket)); err != nil {
		socket.Close()
		return errors.Join(err, os.Remove(aside))
	}
	s.inode, err = inode(s.o.Socket)
	return err
}

func inode(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, err
	}
	return stat.Ino, nil
}

func (s *server) closeSocket() {
	s.socket.Close()
	if now, err := inode(s.o.Socket); err == nil && now == s.inode {
		_ = os.Remove(s.o.Socket)
	}
}

// watchSocket ends the program when its socket's file is gone or another's: nobody could
// tell it anything any more, nor to stop. Another's program has the same ports.
func (s *server) watchSocket(ctx context.Context) {
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now, err := inode(s.o.Socket); err != nil || now != s.inode {
			s.log.Info("the socket is gone; nobody needs this program", "socket", s.o.Socket)
			s.stop()
			return
		}
	}
}

func (s *server) accept(ctx context.Context) {
	var feeders sync.WaitGroup
	for {
		conn, err := s.socket.AcceptUnix()
		if err != nil {
			feeders.Wait()
			return
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		feeders.Go(func() {
			defer stop()
			defer conn.Close()
			if err := s.serve(ctx, conn); err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
				s.log.Warn("a feeder went away", "err", err)
			}
		})
	}
}

// serve takes batches from one feeder.
func (s *server) serve(ctx context.Context, conn *net.UnixConn) error {
	encode, decode := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := encode.Encode(Hello{PID: os.Getpid(), Build: s.o.Build}); err != nil {
		return err
	}
	for {
		var b Batch
		if err := decode.Decode(&b); err != nil {
			return err
		}
		if b.Hand {
			if err := s.hand(conn); err != nil {
				return err
			}
			continue
		}
		if b.Stop {
			s.log.Info("told to stop")
			err := encode.Encode(Done{})
			s.stop()
			return err
		}
		s.view.apply(b)
		done := Done{Version: b.Version}
		if b.Full {
			at, err := s.answer(ctx)
			if done.Listen = at; err != nil {
				done.Error = err.Error()
			}
		}
		if err := encode.Encode(done); err != nil {
			return err
		}
	}
}

package feed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"mend/internal/network/catalog"
	"mend/internal/network/dns"
)

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Config says what to run and what to tell it.
type Config struct {
	// Command is the program and what comes before its own arguments: mend-dns, or mend
	// and "__dns".
	Command []string
	// RunDir holds the program's socket and log.
	RunDir string
	// Zone is the cluster's domain.
	Zone string
	// Address is where it listens: the node's own in its Pod range.
	Address netip.Addr
	// Ports are tried in this order; none: 53, then 10053, then any.
	Ports []uint16
	// Resolvers is the resolv.conf of those who know other names; empty: /etc/resolv.conf.
	Resolvers string

	Catalog *catalog.Catalog
	Log     *slog.Logger
	// Listening is told where the program answers, each time it was started or found.
	Listening func(netip.AddrPort)
}

func (c Config) socket() string  { return filepath.Join(c.RunDir, "dns.sock") }
func (c Config) logFile() string { return filepath.Join(c.RunDir, "dns.log") }

// options are what the program is started with.
func (c Config) options() (dns.Options, error) {
	o := dns.Options{Zone: c.Zone, Address: c.Address, Ports: c.Ports, Socket: c.socket(), Resolvers: c.Resolvers}
	if len(o.Ports) == 0 {
		o.Ports = []uint16{53, 10053, 0}
	}
	if o.Resolvers == "" {
		o.Resolvers = "/etc/resolv.conf"
	}
	info, err := os.Stat(c.Command[0])
	if err != nil {
		return o, fmt.Errorf("the DNS program: %w", err)
	}
	sum := sha256.Sum256(fmt.Append(nil, c.Command, info.Size(), info.ModTime().UnixNano(), o.Args()))
	o.Build = hex.EncodeToString(sum[:8])
	return o, nil
}

// Feed runs the program.
type Feed struct {
	c        Config
	follower *catalog.Follower

	mu     sync.Mutex
	listen netip.AddrPort
	pid    int
}

// New returns a feed; Run starts it.
func New(c Config) (*Feed, error) {
	if len(c.Command) == 0 || c.RunDir == "" || c.Catalog == nil || c.Log == nil || !c.Address.IsValid() {
		return nil, errors.New("the DNS needs a program, a run directory, an address, a catalog and a log")
	}
	if c.Listening == nil {
		c.Listening = func(netip.AddrPort) {}
	}
	return &Feed{c: c, follower: c.Catalog.Follow()}, nil
}

// Listen is where the program answers, and its process; false when it is not known to
// run.
func (f *Feed) Listen() (at netip.AddrPort, pid int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listen, f.pid, f.listen.IsValid()
}

// Run keeps the program running and fed until ctx ends. The program goes on.
func (f *Feed) Run(ctx context.Context) {
	wait := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		began := time.Now()
		err := f.feed(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryMost {
			wait = 0
		}
		wait = min(max(2*wait, retryFirst), retryMost)
		f.c.Log.Warn("the cluster's DNS may be behind; it will be tried again", "err", err)
	}
}

// feed takes the program up, or starts it, and tells it what changes until something
// fails.
func (f *Feed) feed(ctx context.Context) error {
	p, old, err := f.take(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	defer func() {
		if old != nil {
			old.close() // it ends by itself: its socket is the new one's
		}
	}()
	stop := context.AfterFunc(ctx, p.close)
	defer stop()
	f.follower.Again()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.gone:
			return errEnded
		case <-f.follower.Changed():
		}
		changes, ok := f.follower.Take()
		if !ok {
			continue
		}
		done, err := p.tell(batch(changes))
		if err != nil {
			return err
		}
		if changes.First {
			f.settled(p, old, done.Listen)
			old = nil
		}
	}
}

// take returns the program that is to be fed, and an older one that it replaces.
func (f *Feed) take(ctx context.Context) (p, old *program, err error) {
	o, err := f.c.options()
	if err != nil {
		return nil, nil, err
	}
	p, err = connect(o.Socket)
	if err == nil && p.hello.Build == o.Build {
		return p, nil, nil
	}
	var inherited []*os.File
	if err == nil {
		old = p
		if inherited, err = sockets(o.Socket); err != nil {
			f.c.Log.Warn("the older DNS program does not hand its sockets on; a few questions may be lost", "err", err)
		}
	}
	p, err = start(ctx, f.c.Command, o, f.c.logFile(), inherited)
	for _, file := range inherited {
		file.Close()
	}
	if err != nil {
		if old != nil {
			old.close() // better than none
		}
		return nil, nil, err
	}
	return p, old, nil
}

// settled notes that the program knows everything, and ends the one that it replaces.
func (f *Feed) settled(p, old *program, at netip.AddrPort) {
	if old != nil {
		if err := old.stop(); err != nil {
			f.c.Log.Warn("the older DNS program did not end by itself", "pid", old.hello.PID, "err", err)
		}
	}
	f.mu.Lock()
	f.listen, f.pid = at, p.hello.PID
	f.mu.Unlock()
	f.c.Log.Info("the cluster's DNS answers", "at", at, "pid", p.hello.PID)
	f.c.Listening(at)
}

// Stop ends the program of a run directory, for good. None is no error.
func Stop(runDir string) error {
	p, err := connect(Config{RunDir: runDir}.socket())
	if errors.Is(err, errNone) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.stop()
}

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/record"

	"mend/internal/agent"
	"mend/internal/apiserver"
	"mend/internal/controller/apiservice"
	"mend/internal/instance"
	"mend/internal/loop"
	"mend/internal/pki"
	"mend/internal/store"
	"mend/internal/version"
)

// process is one running mend. Its stages end in the order nodes, loops,
// control; whoever ends it ends them in that order.
type process struct {
	config   Config
	instance instance.Instance
	lock     *instance.Lock
	log      *slog.Logger
	since    time.Time

	store      *store.Store
	pki        *pki.Authority
	api        *apiserver.Server
	server     string // URL of the API
	apiService apiservice.Config
	// serviceRange is where Services' addresses come from; Pods' do not overlap it.
	serviceRange netip.Prefix
	// serviceRange6 is the same of IPv6; the zero value where Services have none.
	serviceRange6 netip.Prefix
	events        record.EventBroadcaster
	built         []*loop.Loop
	host          machine // nil with simulated nodes alone
	kubelets      kubelets
	nodeNames     []string
	agentsMu      sync.Mutex
	agents        []*agent.Agent
	fleet         *fleet // simulated nodes

	nodes, loops, control *stage

	failed  chan error // a part that ended by itself
	downed  chan struct{}
	downing sync.Mutex

	snapshotFault atomic.Pointer[error] // of the schedule's last one
}

// Run is the daemon: it starts everything, tells when the node is Ready, and
// returns after ctx ended or [Control.Down] was asked for. Ended by ctx, it
// leaves the containers running for the next start.
func Run(ctx context.Context, config Config, tell Teller) error {
	logLibraries(config.LogTo)
	tuneGC(ctx)
	p, err := open(config)
	if err != nil {
		return err
	}
	defer p.lock.Release()
	for _, s := range []**stage{&p.nodes, &p.loops, &p.control} {
		*s = newStage(ctx)
	}
	defer p.stop()
	if err := p.start(ctx, tell); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted while starting")
		}
		return err
	}
	p.log.Info("mend is ready", "server", p.server, "version", version.Version, "took", time.Since(p.since).Round(time.Millisecond))
	tell.Finish(nil)
	trim()
	select {
	case <-ctx.Done():
		p.log.Info("ending on a signal; containers go on")
		return nil
	case <-p.downed:
		p.log.Info("down, as asked")
		return nil
	case err := <-p.failed:
		p.log.Error("a part ended by itself", "err", err)
		return err
	}
}

// open takes the data directory.
func open(config Config) (*process, error) {
	made, err := instance.Create(config.DataDir)
	if err != nil {
		return nil, err
	}
	lock, err := made.Acquire()
	if err != nil {
		return nil, err
	}
	p := &process{
		config:   config,
		instance: made,
		lock:     lock,
		log:      newLog(config.LogTo, config.Verbose),
		since:    time.Now(),
		failed:   make(chan error, 8),
		downed:   make(chan struct{}),
	}
	p.fleet = newFleet(p, config.Behaviour)
	if config.Simulate == 0 {
		p.host, err = newHost(p)
	}
	if err == nil {
		err = p.chooseServiceRange()
	}
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return p, nil
}

// start brings up the control plane and the host side by side, then what stands
// on both.
func (p *process) start(ctx context.Context, tell Teller) error {
	tell.Doing("opening the state and starting the container runtime")
	var group errgroup.Group
	group.Go(func() error { return p.startControlPlane(ctx) })
	if p.host != nil {
		group.Go(func() error { return p.host.start(ctx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if p.host != nil {
		if err := p.host.serve(); err != nil {
			return err
		}
	}
	if err := p.startEvents(); err != nil {
		return err
	}
	if err := serveControl(p.control.ctx, p.instance.ControlSocket(), p, p.log); err != nil {
		return err
	}
	tell.Doing("starting the loops")
	if err := p.startLoops(ctx); err != nil {
		return err
	}
	tell.Doing("starting the node")
	if err := p.startNodes(ctx); err != nil {
		return err
	}
	if err := p.writeKubeconfigs(tell); err != nil {
		return err
	}
	tell.Doing("waiting for the node to be Ready")
	if err := p.waitReady(ctx); err != nil {
		return err
	}
	if p.host != nil {
		p.host.registered(ctx)
	}
	return nil
}

// startControlPlane opens the state and serves the API.
func (p *process) startControlPlane(ctx context.Context) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.config.APIPort)))
	if err != nil {
		return err
	}
	if p.pki, err = pki.Open(p.instance.Path("pki"), pki.Options{}); err != nil {
		return errors.Join(err, listener.Close())
	}
	if p.store, err = store.Open(store.Config{DataDir: p.instance.Path("state"), Log: p.log}); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := p.snapshotBeforeUpgrade(ctx); err != nil {
		return errors.Join(err, listener.Close())
	}
	p.control.run(p.saveHourly)
	p.server = "https://" + listener.Addr().String()
	if err := p.lock.Tell(instance.Holder{PID: pid(), Version: version.Version, Server: p.server, Since: p.since}); err != nil {
		return err
	}
	p.api, err = apiserver.New(apiserver.Config{
		Etcd:                  p.store.Client(),
		StoreHealth:           p.store.Health,
		PKI:                   p.pki,
		Listen:                listener,
		ServiceClusterIPRange: strings.Join(p.serviceRanges(), ","),
		Kubelets:              &p.kubelets,
		EventTTL:              p.config.EventTTL,
		Log:                   p.log,
	})
	if err != nil {
		return err
	}
	address := listener.Addr().(*net.TCPAddr)
	p.apiService = apiServiceConfig(address)
	p.kubelets.tls = p.pki.DialConfig("mend-apiserver", "system:masters")
	p.control.run(func(ctx context.Context) {
		if err := p.api.Run(ctx); err != nil {
			p.fail(fmt.Errorf("the API server ended: %w", err))
		}
	})
	p.control.run(func(ctx context.Context) {
		select {
		case err := <-p.store.Failed():
			p.fail(fmt.Errorf("the store ended: %w", err))
		case <-ctx.Done():
		}
	})
	return nil
}

func (p *process) fail(err error) {
	select {
	case p.failed <- err:
	default: // one cause is enough
	}
}

// stop ends all stages in order. Containers go on.
func (p *process) stop() {
	p.nodes.end()
	p.loops.end()
	if p.events != nil {
		p.events.Shutdown()
	}
	p.control.end()
	if p.host != nil {
		p.host.leave()
	}
	if p.store != nil {
		if err := p.store.Close(); err != nil {
			p.log.Error("closing the store", "err", err)
		}
	}
}

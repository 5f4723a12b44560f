package app

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"mend/internal/agent"
	"mend/internal/runtime/sim"
)

// simulatedNode is one node: a runtime, and an agent while the node is not lost.
type simulatedNode struct {
	fleet   *fleet
	name    string
	pods    netip.Prefix
	workers int
	end     func() // ends the agent and waits for it; may be called again

	mu      sync.Mutex
	runtime *sim.Runtime
	running *agent.Agent
}

func newSimulatedNode(f *fleet, name string, pods netip.Prefix, workers int) *simulatedNode {
	return &simulatedNode{fleet: f, name: name, pods: pods, workers: workers,
		runtime: sim.New(sim.Options{PodRange: pods, Log: f.p.log, Behaviour: f.behaviour})}
}

// agent is nil while the node is lost.
func (n *simulatedNode) agent() *agent.Agent {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running
}

// prepare makes an agent for the runtime as it is now.
func (n *simulatedNode) prepare() (*agent.Agent, error) {
	p := n.fleet.p
	config, err := p.agentConfig(n.name)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	config.Simulated, config.ProbeDial = true, n.runtime.Dial
	config.Labels = map[string]string{SimulatedLabel: "true"}
	config.Capacity, config.MaxPods, config.Workers = simulatedCapacity(), simulatedPods, n.workers
	config.Runtime, config.Images = n.runtime, n.runtime
	config.DataDir, config.LogDir = p.instance.Path("agent", n.name), p.instance.Path("pod-logs", n.name)
	config.PodCIDRs, config.NodeIP = []string{n.pods.String()}, n.pods.Addr().Next().String()
	made, err := agent.New(config)
	if err == nil {
		n.running = made
	}
	return made, err
}

// start runs the node in a stage, until that ends or end is called.
func (n *simulatedNode) start(in *stage, first *agent.Agent) {
	ctx, cancel := context.WithCancel(in.ctx)
	done := make(chan struct{})
	n.end = func() { cancel(); <-done }
	in.run(func(context.Context) {
		defer close(done)
		n.run(ctx, first)
	})
}

// run keeps the node, and loses it as its behaviour says, until ctx ends.
func (n *simulatedNode) run(ctx context.Context, next *agent.Agent) {
	defer func() { n.runtime.Stop() }()
	for times := 0; ctx.Err() == nil; {
		var outage sim.Outage
		times, outage = n.live(ctx, next, times)
		if ctx.Err() != nil {
			return
		}
		n.fleet.p.log.Info("simulated node lost", "node", n.name, "for", outage.For, "power", outage.Power)
		if outage.Power {
			n.cutPower()
		}
		_, _, changed := n.fleet.outage(n.name, times)
		if awaken(ctx, changed, outage.For, outage.For > 0) == replanned {
			times = 0
		}
		if ctx.Err() != nil {
			return
		}
		var err error
		if next, err = n.prepare(); err != nil {
			n.fleet.p.log.Error("a simulated node cannot return", "node", n.name, "err", err)
			return
		}
		n.fleet.p.log.Info("simulated node returned", "node", n.name)
	}
}

// live runs the agent until the node is lost, and returns how often it was.
func (n *simulatedNode) live(ctx context.Context, next *agent.Agent, times int) (int, sim.Outage) {
	agentCtx, cut := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := next.Run(agentCtx); err != nil {
			n.fleet.p.log.Error("the agent of a simulated node ended", "node", n.name, "err", err)
		}
	})
	defer func() {
		n.mu.Lock()
		n.running = nil
		n.mu.Unlock()
		cut()
		running.Wait()
	}()
	for {
		outage, planned, changed := n.fleet.outage(n.name, times)
		switch awaken(ctx, changed, outage.After, planned) {
		case replanned:
			times = 0
		case ended, due:
			return times + 1, outage
		}
	}
}

// cutPower ends the containers: the next agent finds a runtime without any. The
// fleet is locked meanwhile, or a behaviour that is replaced now would reach the old
// runtime only.
func (n *simulatedNode) cutPower() {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runtime.Stop()
	n.runtime = sim.New(sim.Options{PodRange: n.pods, Log: n.fleet.p.log, Behaviour: n.fleet.behaviour})
}

// setBehaviour replaces the behaviour of what starts from now on.
func (n *simulatedNode) setBehaviour(behaviour *sim.Behaviour) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runtime.SetBehaviour(behaviour)
}

// wakeUp is why a wait ended.
type wakeUp int

const (
	ended wakeUp = iota
	replanned
	due
)

// awaken waits for the end of ctx, another plan, or the time if there is one.
func awaken(ctx context.Context, changed <-chan struct{}, after time.Duration, planned bool) wakeUp {
	var at <-chan time.Time
	if planned {
		timer := time.NewTimer(after)
		defer timer.Stop()
		at = timer.C
	}
	select {
	case <-ctx.Done():
		return ended
	case <-changed:
		return replanned
	case <-at:
		return due
	}
}

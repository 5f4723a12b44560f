package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"mend/internal/agent"
	"mend/internal/instance"
	"mend/internal/runtime/sim"
)

const (
	// SimulatedLabel is on every simulated node.
	SimulatedLabel = "mend.local/simulated"
	// simulatedPods is KWOK's bound, so that figures compare.
	simulatedPods = 1_000_000
	// MostSimulated is how many simulated nodes have a range of addresses.
	MostSimulated = wideRanges + narrowRanges
	// fleetFile keeps what was last asked for while mend ran.
	fleetFile = "simulated.json"
)

// fleet is the simulated nodes of this process. Their number and behaviour may
// change while it runs.
type fleet struct {
	p *process

	changing sync.Mutex // one change at a time

	mu        sync.Mutex
	nodes     []*simulatedNode
	behaviour *sim.Behaviour
	changed   chan struct{} // closed when behaviour is replaced
	closed    bool
	base      string // of the nodes' names; empty until begin
	single    bool   // the first node carries the name itself
}

// fleetState is what fleetFile holds.
type fleetState struct {
	Nodes     int    `json:"nodes"`
	Behaviour string `json:"behaviour,omitempty"` // YAML
}

func newFleet(p *process, behaviour *sim.Behaviour) *fleet {
	if behaviour == nil {
		behaviour = sim.DefaultBehaviour()
	}
	return &fleet{p: p, behaviour: behaviour, changed: make(chan struct{}), single: p.config.Simulate == 1}
}

// begin starts the nodes that the flags ask for, or else those of before the
// restart, and takes those out of the API that only an earlier start had.
func (f *fleet) begin(ctx context.Context) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	base, err := f.p.config.nodeName()
	if err != nil {
		return err
	}
	f.base = base
	count := f.p.config.Simulate
	if count == 0 {
		if count, err = f.restore(); err != nil {
			f.p.log.Warn("the simulated nodes of before are not started again", "err", err)
		}
	} else if err := os.Remove(f.p.instance.Path(fleetFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.grow(count); err != nil {
		return err
	}
	return f.dropStrangers(ctx)
}

func (f *fleet) restore() (int, error) {
	text, err := os.ReadFile(f.p.instance.Path(fleetFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	var state fleetState
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil || state.Behaviour == "" {
		return state.Nodes, err
	}
	behaviour, err := sim.ParseBehaviour([]byte(state.Behaviour))
	if err != nil {
		return 0, err
	}
	f.behaviour = behaviour
	return state.Nodes, nil
}

// Simulate implements [Control].
func (p *process) Simulate(ctx context.Context, nodes int, behaviour string, tell Teller) error {
	if nodes < 0 || nodes > MostSimulated {
		return fmt.Errorf("%d nodes: must be between 0 and %d", nodes, MostSimulated)
	}
	return p.fleet.change(ctx, nodes, behaviour, tell)
}

// change brings the fleet to so many nodes. With a behaviour (YAML) all of them
// follow it from now on; without one nothing changes for those that are there.
func (f *fleet) change(ctx context.Context, count int, text string, tell Teller) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	if f.base == "" {
		return errors.New("mend is still starting; try again when it is ready")
	}
	if text != "" {
		behaviour, err := sim.ParseBehaviour([]byte(text))
		if err != nil {
			return err
		}
		f.setBehaviour(behaviour)
	} else if state, err := os.ReadFile(f.p.instance.Path(fleetFile)); err == nil {
		var before fleetState
		if err := json.Unmarshal(state, &before); err == nil {
			text = before.Behaviour
		}
	}
	state, err := json.Marshal(fleetState{Nodes: count, Behaviour: text})
	if err != nil {
		return err
	}
	if err := instance.WriteFile(f.p.instance.Path(fleetFile), state, 0o600); err != nil {
		return err
	}
	tell.Doing("starting and ending simulated nodes")
	if err := f.grow(count); err != nil {
		return err
	}
	f.shrink(count)
	if err := f.dropStrangers(ctx); err != nil {
		return err
	}
	tell.Doing("waiting for the nodes to be Ready")
	return f.waitReady(ctx)
}

func (f *fleet) setBehaviour(behaviour *sim.Behaviour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behaviour = behaviour
	for _, node := range f.nodes {
		node.setBehaviour(behaviour)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// outage is what the node goes through next; changed is closed when that is
// planned anew.
func (f *fleet) outage(node string, times int) (next sim.Outage, planned bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, planned = f.behaviour.Outage(node, times)
	return next, planned, f.changed
}

// grow starts nodes until there are count.
func (f *fleet) grow(count int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errors.New("mend is going down")
	}
	for i := len(f.nodes); i < count; i++ {
		node := newSimulatedNode(f, f.name(i), simulatedRange(i), f.workers(count))
		first, err := node.prepare()
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, node)
		node.start(f.p.nodes, first)
	}
	return nil
}

// workers bounds the goroutines of a thousand agents.
func (f *fleet) workers(count int) int {
	if count > 16 {
		return 4
	}
	return 16
}

// name numbers the nodes. One that was started alone carries the host's name.
func (f *fleet) name(i int) string {
	if i == 0 && f.single {
		return f.base
	}
	return fmt.Sprintf("%s-%d", f.base, i)
}

// shrink ends the nodes beyond count, the last first. In the API they are strangers
// from then on.
func (f *fleet) shrink(count int) {
	f.mu.Lock()
	gone := slices.Clone(f.nodes[min(count, len(f.nodes)):])
	f.nodes = f.nodes[:min(count, len(f.nodes))]
	f.mu.Unlock()
	slices.Reverse(gone)
	for _, node := range gone {
		node.end()
		f.p.kubelets.remove(node.name)
	}
}

// forget takes a node out of the API whose agent has ended, and its Pods, which
// would otherwise wait for 40 s to be collected.
func (f *fleet) forget(ctx context.Context, client kubernetes.Interface, name string) error {
	if err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return errors.Join(os.RemoveAll(f.p.instance.Path("agent", name)), os.RemoveAll(f.p.instance.Path("pod-logs", name)))
}

// dropStrangers takes out simulated nodes that no agent of this process keeps. One
// that could not be taken out, or for which nobody waited, is tried again with the
// next change.
func (f *fleet) dropStrangers(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(f.p.api.ClientConfig("simulate"))
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: SimulatedLabel + "=true"})
	if err != nil {
		return err
	}
	ours := f.names()
	for i := range nodes.Items {
		if name := nodes.Items[i].Name; !slices.Contains(ours, name) {
			if err := f.forget(ctx, client, name); err != nil {
				return fmt.Errorf("take node %s out: %w", name, err)
			}
		}
	}
	return nil
}

func (f *fleet) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for _, node := range f.nodes {
		names = append(names, node.name)
	}
	return names
}

// waitReady returns when every node that is not cut off is Ready.
func (f *fleet) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	client, err := kubernetes.NewForConfig(f.p.api.ClientConfig("simulate"))
	if err != nil {
		return err
	}
	f.mu.Lock()
	nodes := slices.Clone(f.nodes)
	f.mu.Unlock()
	for _, node := range nodes {
		if node.agent() == nil {
			continue
		}
		if err := waitNode(ctx, client, node.name, nil); err != nil {
			return err
		}
	}
	return nil
}

// close takes no more changes and returns the agents that run.
func (f *fleet) close() []*agent.Agent {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	var agents []*agent.Agent
	for _, node := range f.nodes {
		if running := node.agent(); running != nil {
			agents = append(agents, running)
		}
	}
	return agents
}

func simulatedCapacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("1k"),
		corev1.ResourceMemory: resource.MustParse("1Ti"),
	}
}

// The first wideRanges nodes have 65,536 addresses each, in 10.128.0.0/10; the
// others 1,024 in 10.192.0.0/10. Few nodes run many Pods each, or many nodes few.
const (
	wideRanges   = 64
	narrowRanges = 4096
)

func simulatedRange(node int) netip.Prefix {
	if node < wideRanges {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + node), 0, 0}), 16)
	}
	node -= wideRanges
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(192 + node>>6), byte(node << 2), 0}), 22)
}

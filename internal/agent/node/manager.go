package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/version"
	nodeutil "k8s.io/component-helpers/node/util"
	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

const (
	checkPeriod  = 10 * time.Second
	unreadyCheck = 100 * time.Millisecond // at first, while the runtime comes up
	maxUnready   = 5 * time.Second
	reportPeriod = 5 * time.Minute
	callTimeout  = 10 * time.Second
)

// Config is what a Manager needs; Labels, Taints, Capacity and Reserve may be nil.
type Config struct {
	Name        string
	Client      kubernetes.Interface
	Runtime     cri.RuntimeService
	Images      cri.ImageManagerService
	Clock       clock.WithTicker
	Log         *slog.Logger
	Events      record.EventRecorder
	IPs         []string // primary first
	Labels      map[string]string
	Taints      []v1.Taint
	Capacity    v1.ResourceList // over what is measured
	Reserve     v1.ResourceList
	MaxPods     int
	DataDir     string
	KubeletPort int32
	PodCIDRs    []string // of a node that is created, one of each family; may be empty
}

// Manager keeps the Node and its Lease. Its methods may be called from any
// goroutine.
type Manager struct {
	cfg      Config
	machine  Machine
	informer cache.SharedIndexInformer
	factory  informers.SharedInformerFactory
	wake     chan struct{}
	unready  int // checks in a row that found the runtime not ready

	mu       sync.Mutex
	last     *v1.Node // the newest seen
	reported time.Time
	images   bool // look at them at the next check
}

// New measures the machine; nothing is written before Run.
func New(cfg Config) (*Manager, error) {
	machine, err := Measure(cfg.DataDir, cfg.MaxPods)
	if err != nil {
		return nil, fmt.Errorf("measure the machine: %w", err)
	}
	maps.Copy(machine.Capacity, cfg.Capacity)
	m := &Manager{cfg: cfg, machine: machine, wake: make(chan struct{}, 1), images: true}
	m.factory = informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", cfg.Name).String()
	}))
	m.informer = m.factory.Core().V1().Nodes().Informer()
	return m, nil
}

// Capacity and Allocatable are those of the machine, without what others add.
func (m *Manager) Capacity() v1.ResourceList { return m.machine.Capacity }

// Allocatable is what Pods may use of Capacity.
func (m *Manager) Allocatable() v1.ResourceList {
	var s v1.NodeStatus
	setCapacity(&s, Observed{Machine: m.machine, Reserve: m.cfg.Reserve})
	return s.Allocatable
}

// Current is the Node as last seen, or as it will be registered.
func (m *Manager) Current() *v1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil {
		return m.last
	}
	n := m.initial()
	setCapacity(&n.Status, Observed{Machine: m.machine, Reserve: m.cfg.Reserve})
	return n
}

// ImagesChanged has the list of images looked at soon.
func (m *Manager) ImagesChanged() {
	m.mu.Lock()
	m.images = true
	m.mu.Unlock()
}

func (m *Manager) initial() *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.cfg.Name, Labels: standardLabels(m.cfg.Name)}}
	maps.Copy(n.Labels, m.cfg.Labels)
	n.Spec.Taints = append(n.Spec.Taints, m.cfg.Taints...)
	if len(m.cfg.PodCIDRs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = m.cfg.PodCIDRs[0], m.cfg.PodCIDRs
	}
	return n
}

// Run registers the node and keeps it until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	m.event(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	if _, err := m.informer.AddEventHandler(m.handler()); err != nil {
		m.cfg.Log.Error("cannot watch the node", "err", err)
		return
	}
	var parts sync.WaitGroup
	parts.Go(func() { m.renewLease(ctx) })
	period := m.check(ctx)
	m.factory.Start(ctx.Done())
	timer := m.cfg.Clock.NewTimer(period)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			m.factory.Shutdown()
			parts.Wait()
			return
		case <-m.wake:
		case <-timer.C():
		}
		period = m.check(ctx)
		timer.Stop()
		timer.Reset(period)
	}
}

func (m *Manager) handler() cache.ResourceEventHandler {
	changed := func(obj any) {
		n, ok := obj.(*v1.Node)
		if !ok {
			return
		}
		m.mu.Lock()
		same := m.last != nil && m.last.ResourceVersion == n.ResourceVersion
		m.last = n
		m.mu.Unlock()
		if !same {
			m.wakeUp()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, obj any) { changed(obj) },
		DeleteFunc: func(any) {
			m.mu.Lock()
			m.last = nil
			m.mu.Unlock()
			m.wakeUp()
		},
	}
}

func (m *Manager) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// check measures, writes what changed, and says when to check again.
func (m *Manager) check(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o := m.observe(ctx)
	err := m.report(ctx, o)
	if err != nil && ctx.Err() == nil {
		m.cfg.Log.Warn("cannot report the node's status", "err", err)
		return time.Second
	}
	if err != nil || len(o.Runtime.problems()) > 0 {
		m.unready++
		return min(unreadyCheck<<min(m.unready/20, 6), maxUnready)
	}
	m.unready = 0
	return checkPeriod
}

func (m *Manager) observe(ctx context.Context) Observed {
	o := Observed{Machine: m.machine, Reserve: m.cfg.Reserve, IPs: m.cfg.IPs, KubeletPort: m.cfg.KubeletPort,
		KubeletVersion: version.Get().GitVersion, Pressure: measurePressure(m.cfg.DataDir)}
	o.Runtime = m.askRuntime(ctx)
	m.mu.Lock()
	look := m.images
	m.mu.Unlock()
	if look && o.Runtime.Err == nil {
		if list, err := m.cfg.Images.ListImages(ctx, &runtimeapi.ImageFilter{}); err == nil {
			o.Images = append([]*runtimeapi.Image{}, list...)
		}
	}
	return o
}

func (m *Manager) askRuntime(ctx context.Context) RuntimeState {
	status, err := m.cfg.Runtime.Status(ctx, false)
	if err != nil {
		return RuntimeState{Err: err}
	}
	is, err := m.cfg.Runtime.Version(ctx, "v1")
	if err != nil {
		return RuntimeState{Err: err}
	}
	return RuntimeState{Name: is.RuntimeName, Version: is.RuntimeVersion, Conditions: status.GetStatus().GetConditions(),
		Handlers: status.RuntimeHandlers, Features: status.Features}
}

// report writes the Node if it changed or was not written for long.
func (m *Manager) report(ctx context.Context, o Observed) error {
	now := m.cfg.Clock.Now()
	m.mu.Lock()
	have, reported := m.last, m.reported
	m.mu.Unlock()
	if have == nil {
		return m.register(ctx, o, now)
	}
	want := build(have, o, now)
	for k, v := range standardLabels(m.cfg.Name) {
		if want.Labels == nil {
			want.Labels = map[string]string{}
		}
		want.Labels[k] = v
	}
	if !differs(have, want) && now.Sub(reported) < reportPeriod {
		m.looked(o)
		return nil
	}
	written, _, err := nodeutil.PatchNodeStatus(m.cfg.Client.CoreV1(), types.NodeName(m.cfg.Name), have, want)
	if apierrors.IsNotFound(err) {
		m.mu.Lock()
		m.last = nil
		m.mu.Unlock()
		return m.register(ctx, o, now)
	}
	if err != nil {
		m.refresh(ctx)
		return err
	}
	m.tell(have, written)
	m.note(written, now, o)
	return nil
}

// refresh reads the Node after a write that failed: what the write went out from
// may be stale.
func (m *Manager) refresh(ctx context.Context) {
	if n, err := m.cfg.Client.CoreV1().Nodes().Get(ctx, m.cfg.Name, metav1.GetOptions{}); err == nil {
		m.mu.Lock()
		m.last = n
		m.mu.Unlock()
	}
}

func (m *Manager) note(n *v1.Node, now time.Time, o Observed) {
	m.mu.Lock()
	m.last, m.reported = n, now
	m.mu.Unlock()
	m.looked(o)
}

func (m *Manager) looked(o Observed) {
	if o.Images == nil {
		return
	}
	m.mu.Lock()
	m.images = false
	m.mu.Unlock()
}

// register creates the Node, or takes over the one that is there. A node that is
// not ready starts with the taint that keeps Pods away.
func (m *Manager) register(ctx context.Context, o Observed, now time.Time) error {
	n := build(m.initial(), o, now)
	if len(o.Runtime.problems()) > 0 {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule})
	}
	created, err := m.cfg.Client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err == nil {
		m.cfg.Log.Info("registered the node", "name", m.cfg.Name)
		m.note(created, now, o)
		if differs(created, n) {
			m.wakeUp() // a server that takes no status at creation
		}
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := m.cfg.Client.CoreV1().Nodes().Get(ctx, m.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.last, m.reported = have, time.Time{}
	m.mu.Unlock()
	if have.Status.NodeInfo.BootID != "" && have.Status.NodeInfo.BootID != m.machine.Info.BootID {
		m.event(v1.EventTypeWarning, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", m.cfg.Name, m.machine.Info.BootID))
	}
	return m.report(ctx, o)
}

// tell writes an event for each condition that turned.
func (m *Manager) tell(before, after *v1.Node) {
	was := map[v1.NodeConditionType]v1.ConditionStatus{}
	for _, c := range before.Status.Conditions {
		was[c.Type] = c.Status
	}
	for _, c := range after.Status.Conditions {
		if was[c.Type] == c.Status {
			continue
		}
		if name := turned[c.Type][c.Status]; name != "" {
			m.event(v1.EventTypeNormal, name, fmt.Sprintf("Node %s status is now: %s", m.cfg.Name, name))
		}
	}
}

// turned names the event of a condition that took a status.
var turned = map[v1.NodeConditionType]map[v1.ConditionStatus]string{
	v1.NodeReady:          {v1.ConditionTrue: "NodeReady", v1.ConditionFalse: "NodeNotReady"},
	v1.NodeMemoryPressure: {v1.ConditionTrue: "NodeHasInsufficientMemory", v1.ConditionFalse: "NodeHasSufficientMemory"},
	v1.NodeDiskPressure:   {v1.ConditionTrue: "NodeHasDiskPressure", v1.ConditionFalse: "NodeHasNoDiskPressure"},
	v1.NodePIDPressure:    {v1.ConditionTrue: "NodeHasInsufficientPID", v1.ConditionFalse: "NodeHasSufficientPID"},
}

func (m *Manager) event(kind, reason, message string) {
	m.cfg.Events.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: m.cfg.Name, UID: types.UID(m.cfg.Name)}, kind, reason, message)
}

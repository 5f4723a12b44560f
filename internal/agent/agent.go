package agent

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"mend/internal/agent/cgroup"
	"mend/internal/agent/hostpath"
	"mend/internal/agent/image"
	"mend/internal/agent/kubeletapi"
	"mend/internal/agent/logs"
	"mend/internal/agent/node"
	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
	"mend/internal/agent/probe"
	"mend/internal/agent/volume"
	"mend/internal/loop"
	caches "mend/internal/view"
)

// Limits and periods. Every call to the runtime is bounded; a bound that is
// reached means a broken runtime, and the step is tried again.
const (
	resyncPeriod   = time.Minute
	observeTimeout = 10 * time.Second
	sandboxTimeout = 4 * time.Minute
	startTimeout   = 2 * time.Minute
	stopSlack      = time.Minute // beyond the grace period
	pullTimeout    = time.Hour
	hookTimeout    = time.Hour
	rotatePeriod   = 10 * time.Second
	workers        = 16
	// statusHold lets a Pod that comes up at once be written once: the first
	// status waits so long for a better one.
	statusHold = 150 * time.Millisecond
)

// Agent is the agent of one node. Its methods may be called from any goroutine.
type Agent struct {
	cfg     Config
	host    podspec.Host
	reader  *podruntime.Reader
	puller  *image.Puller
	volumes *volume.Manager
	cgroups *cgroup.Tree // nil on a simulated node
	probes  *probe.Manager
	logs    *logs.Reader
	server  *kubeletapi.Server // nil without a listener
	node    *node.Manager
	sources *sources
	room    *room
	starts  *starts
	loop    *loop.Loop // plans, by Pod UID
	writer  *loop.Loop // statuses, by Pod UID

	pods     cache.SharedIndexInformer
	services corelisters.ServiceLister
	synced   []cache.InformerSynced
	factory  []informers.SharedInformerFactory

	runtimeName string // known once the runtime answered

	// actions runs actions; it ends with Run.
	actions context.Context
	flying  sync.WaitGroup

	mu   sync.Mutex
	all  map[types.UID]*pod
	halt bool
}

// New makes an agent; nothing runs before Run.
func New(cfg Config) (*Agent, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, all: map[types.UID]*pod{}, room: newRoom(), starts: newStarts()}
	if cfg.CgroupParent != "" {
		if a.cgroups, err = cgroup.Open(cfg.CgroupParent); err != nil {
			return nil, err
		}
	}
	a.node, err = node.New(node.Config{
		Name: cfg.NodeName, Client: cfg.Client, Runtime: cfg.Runtime, Images: cfg.Images, Clock: cfg.Clock, Log: cfg.Log,
		Events: cfg.Events, IPs: cfg.NodeIPs, Labels: cfg.Labels, Taints: cfg.Taints, Capacity: cfg.Capacity,
		Reserve: cfg.AllocatableReserve, MaxPods: cfg.MaxPods, DataDir: cfg.DataDir, KubeletPort: port(cfg.KubeletListen), PodCIDRs: cfg.PodCIDRs,
	})
	if err != nil {
		return nil, err
	}
	a.host = hostFacts(cfg, a.cgroups, a.node)
	a.puller = image.NewPuller(cfg.Images, cfg.Clock)
	a.logs = logs.NewReader(cfg.Clock, cfg.Log)
	a.reader = podruntime.NewReader(cfg.Runtime, a.endMessage)
	a.buildInformers()
	a.sources = &sources{client: cfg.Client, services: a.services}
	a.volumes = &volume.Manager{Host: a.host, Sources: a.sources, Tokens: a.sources, Mounter: volume.Kernel{}, HostPaths: hostpath.NewAsker(cfg.Clock)}
	if cfg.Simulated {
		a.volumes.Mounter, a.volumes.HostPaths, a.volumes.Lazy = volume.None{}, nil, true
	}
	a.probes = probe.NewManager(probe.Options{Execer: cfg.Runtime, Clock: cfg.Clock, Dial: cfg.ProbeDial,
		OnChange: a.probeChanged, OnFailure: a.probeFailed, Log: cfg.Log})
	if a.server, err = a.newServer(); err != nil {
		return nil, err
	}
	a.loop = loop.New(loop.Options{Name: "agent", Reconciler: loop.Func(a.sync), Workers: cfg.Workers, Clock: cfg.Clock, Log: cfg.Log})
	a.writer = loop.New(loop.Options{Name: "agent-status", Reconciler: loop.Func(a.writeStatus), Workers: cfg.Workers, Clock: cfg.Clock, Log: cfg.Log})
	return a, nil
}

func hostFacts(cfg Config, tree *cgroup.Tree, n *node.Manager) podspec.Host {
	capacity := n.Capacity()
	return podspec.Host{
		NodeName: cfg.NodeName, NodeIPs: cfg.NodeIPs,
		ClusterDomain: cfg.ClusterDomain, ClusterDNS: cfg.ClusterDNS, ResolvConf: cfg.ResolvConf,
		LogDir: cfg.LogDir, PodsDir: cfg.podsDir(), SeccompDir: cfg.DataDir + "/seccomp",
		CgroupParent: cfg.CgroupParent, UnifiedCgroup: tree != nil && tree.Unified(),
		MemoryCapacity: capacity.Memory().Value(), Allocatable: n.Allocatable(),
		MinOOMScore: minOOMScore(),
	}
}

func (a *Agent) buildInformers() {
	onNode := fields.OneTermEqualSelector("spec.nodeName", a.cfg.NodeName)
	ours := informers.NewSharedInformerFactoryWithOptions(a.cfg.Client, 0, informers.WithTransform(caches.StripManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = onNode.String() }))
	all := informers.NewSharedInformerFactoryWithOptions(a.cfg.Client, 0, informers.WithTransform(caches.StripManagedFields))
	if direct := a.cfg.ListWatch; direct != nil {
		ours.InformerFor(&v1.Pod{}, through(direct("pods", onNode), &v1.Pod{}))
		all.InformerFor(&v1.Service{}, through(direct("services", nil), &v1.Service{}))
	}
	a.pods = ours.Core().V1().Pods().Informer()
	a.services = all.Core().V1().Services().Lister()
	a.synced = []cache.InformerSynced{a.pods.HasSynced, all.Core().V1().Services().Informer().HasSynced}
	a.factory = []informers.SharedInformerFactory{ours, all}
}

// through makes an informer that watches in another way than through the client.
func through(watched cache.ListerWatcher, kind runtime.Object) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
	return func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(watched, kind, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
}

// Run registers the node and works until ctx ends; containers live on. It returns
// an error only if it could not begin.
func (a *Agent) Run(ctx context.Context) error {
	for _, dir := range []string{a.cfg.podsDir(), a.cfg.LogDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("agent: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.actions = ctx
	if _, err := a.pods.AddEventHandler(a.podHandler()); err != nil {
		return fmt.Errorf("agent: watch pods: %w", err)
	}
	var parts sync.WaitGroup
	parts.Go(func() { a.node.Run(ctx) })
	parts.Go(func() { a.serve(ctx) })
	parts.Go(func() { a.rotateLogs(ctx) })
	for _, f := range a.factory {
		f.Start(ctx.Done())
	}
	// The runtime is looked at only with the Pods known: what it holds of a Pod
	// that the API does not have is about to be ended. And nothing is started
	// before the runtime was looked at: it may be there already.
	if cache.WaitForCacheSync(ctx.Done(), a.synced...) && a.firstCensus(ctx) {
		parts.Go(func() { a.watchRuntime(ctx) })
		parts.Go(func() { a.writer.Run(ctx) })
		a.loop.Run(ctx)
	}
	<-ctx.Done()
	for _, f := range a.factory {
		f.Shutdown()
	}
	a.probes.Stop()
	parts.Wait()
	a.flying.Wait()
	return nil
}

// get finds what is remembered of a Pod; nil if nothing.
func (a *Agent) get(uid types.UID) *pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[uid]
}

// snapshot lists all Pods known.
func (a *Agent) snapshot() []*pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]*pod, 0, len(a.all))
	for _, p := range a.all {
		list = append(list, p)
	}
	return list
}

// podHandler tells the workers what happens in the API.
func (a *Agent) podHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { a.podSeen(obj.(*v1.Pod)) },
		UpdateFunc: func(_, obj any) { a.podSeen(obj.(*v1.Pod)) },
		DeleteFunc: func(obj any) {
			if late, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = late.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				a.podGone(pod)
			}
		},
	}
}

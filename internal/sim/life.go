package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"mend/internal/controller/deployment"
	"mend/internal/controller/endpoints"
	"mend/internal/controller/endpoints/endpointslice"
	"mend/internal/controller/endpoints/mirror"
	"mend/internal/controller/garbage"
	"mend/internal/controller/ipaddress"
	"mend/internal/controller/loadbalancer"
	"mend/internal/controller/namespace"
	"mend/internal/controller/nodehealth"
	"mend/internal/controller/podgc"
	"mend/internal/controller/replicaset"
	"mend/internal/controller/rootca"
	"mend/internal/controller/serviceaccount"
	"mend/internal/controller/servicecidr"
	"mend/internal/controller/tainteviction"
	"mend/internal/loop"
	"mend/internal/scheduler"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// kinds are what garbage collection finds served.
var kinds = []garbage.Kind{
	{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, Kind: "Deployment", Namespaced: true},
	{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, Kind: "ReplicaSet", Namespaced: true},
	{Resource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Kind: "Node"},
	{Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true},
}

// kindsOfServices are served too where there are Services.
var kindsOfServices = []garbage.Kind{
	{Resource: schema.GroupVersionResource{Group: discovery.GroupName, Version: "v1", Resource: "endpointslices"}, Kind: "EndpointSlice", Namespaced: true},
	{Resource: schema.GroupVersionResource{Version: "v1", Resource: "services"}, Kind: "Service", Namespaced: true},
}

// kindsOfMirrors are served too where Endpoints are mirrored: they own slices.
var kindsOfMirrors = []garbage.Kind{
	{Resource: schema.GroupVersionResource{Version: "v1", Resource: "endpoints"}, Kind: "Endpoints", Namespaced: true},
}

// life is one process of mend, from its start to its death: the loops, their
// queues and how far their watches have come.
type life struct {
	w       *world
	ctx     context.Context
	kill    context.CancelFunc
	factory *factory
	loops   []*driven
	streams []*stream // the informers', then garbage collection's own
	syncs   []*syncing
}

type driven struct {
	*loop.Loop
	queue *queue
}

// syncing is a sync under way.
type syncing struct {
	loop, key string
	owner     object // the ReplicaSet or Deployment of the key, as the cache had it at the start; nil: none
	seen      *sight // of the Service of the key, at the start
	made      []made
	// judge checks a write against what the caches showed at the start; nil: nothing to
	// check it against.
	judge    func(r request, target object)
	ownerWas bool // in truth, that owner was there and not being deleted at the start
}

// begin starts a process: loops built, informers listed.
func (w *world) begin() {
	ctx, kill := context.WithCancel(context.Background())
	l := &life{w: w, ctx: ctx, kill: kill, factory: newFactory()}
	w.life = l
	queues := map[string]*queue{}
	env := loop.Env{
		Client: client{life: l}, Informers: l.factory, Events: &record.FakeRecorder{}, Clock: w.clock,
		Log: slog.New(logTo{w}),
		Drive: &loop.Drive{Queue: func(name string) workqueue.TypedRateLimitingInterface[string] {
			queues[name] = newQueue(w.clock)
			return queues[name]
		}},
	}
	declared, watched, served := w.parts()
	w.silences.turned = false
	for _, d := range declared {
		made, err := d.Build(env)
		must(err)
		l.loops = append(l.loops, &driven{made, queues[made.Name()]})
	}
	if w.profile.namespaces {
		made, err := namespace.Drive(env, metadataClient{l}, discoverer{l})
		must(err)
		l.loops = append(l.loops, &driven{made, queues[made.Name()]})
	}
	gc := garbage.Drive(env, metadataClient{l}, served)
	l.loops = append(l.loops, &driven{gc.Loop, queues[gc.Loop.Name()]})
	for _, res := range watched {
		s := &stream{api: w.api, res: res, sink: l.factory.of[res]}
		s.relist()
		l.streams = append(l.streams, s)
	}
	for _, kind := range served {
		l.streams = append(l.streams, &stream{
			api: w.api, res: resource(kind.Resource.Resource), sink: metadataFeed{gc.Feeds[kind.Resource]},
		})
	}
}

// parts are the loops that a run has, the kinds that their informers watch and those
// that garbage collection finds served.
func (w *world) parts() (declared []loop.Declaration, watched []resource, served []garbage.Kind) {
	declared = []loop.Declaration{deployment.Declaration(), replicaset.Declaration(nil), scheduler.Declaration(), podgc.Declaration()}
	watched, served = resources, kinds
	if w.profile.silence {
		declared = append(declared, nodehealth.Declaration(), tainteviction.Declaration())
		watched = append([]resource{leases}, watched...)
	}
	if w.profile.namespaces {
		declared = append(declared, namespace.SystemDeclaration(), serviceaccount.Declaration(), rootca.Declaration([]byte(rootCA)))
		watched = slices.Concat(watched, namespaceKinds)
	}
	if w.profile.services {
		declared = append(declared, endpointslice.Declaration(), endpoints.Declaration())
		watched = slices.Concat(watched, serviceKinds)
		served = slices.Concat(served, kindsOfServices)
	}
	if w.profile.balancers {
		declared = append(declared, loadbalancer.Declaration(reservedPort))
	}
	if w.profile.mirrors {
		declared = append(declared, mirror.Declaration())
		served = slices.Concat(served, kindsOfMirrors)
	}
	if w.profile.addresses {
		declared = append(declared, servicecidr.Declaration(defaultRange), ipaddress.Declaration())
		watched = slices.Concat(watched, addressKinds)
	}
	return declared, watched, served
}

// crash ends the process, in the middle of whatever it does, and starts the next
// once the sync under way has unwound.
func (w *world) crash() {
	w.note("the process is killed")
	w.life.kill()
}

func (w *world) restartIfDead() {
	if w.life.ctx.Err() != nil {
		w.begin()
		w.note("the process starts")
	}
}

// ready are the keys that could be worked on now, as loop and key.
func (l *life) ready() []task {
	var all []task
	for _, d := range l.loops {
		for _, key := range sortedKeys(d.queue.ready) {
			all = append(all, task{d, key})
		}
	}
	return all
}

type task struct {
	loop *driven
	key  string
}

// step works on one key as a worker of its loop would.
func (l *life) step(t task) {
	s := &syncing{loop: t.loop.Name(), key: t.key}
	switch s.loop {
	case "deployment":
		s.owner = l.cached(deployments, t.key)
	case "replicaset":
		s.owner = l.cached(replicaSets, t.key)
	case "endpointslice", "endpoints":
		s.seen = l.seen(t.key)
	case "loadbalancer":
		s.judge = l.judgeBalancer(t.key)
	case "endpointslicemirror":
		s.judge = l.judgeMirror(t.key)
	case "servicecidr":
		s.judge = l.judgeRange(t.key)
	case "ipaddress":
		s.judge = l.judgeRecord()
	}
	s.ownerWas = s.owner != nil && l.w.lives(s.owner)
	if l.w.isTraced() {
		l.w.note("%s works on %s", s.loop, s.key)
	}
	l.syncs = append(l.syncs, s)
	t.loop.queue.chosen = t.key
	before, _ := t.loop.Panics()
	t.loop.Step(l.ctx)
	if after, _ := t.loop.Panics(); after > before {
		l.w.breach("%s panics on %s", s.loop, s.key)
	}
	l.syncs = l.syncs[:len(l.syncs)-1]
	if l.ctx.Err() == nil {
		l.vanish(s.made)
	}
}

func (l *life) cached(res resource, key string) object {
	o, ok, err := l.factory.of[res].indexer.GetByKey(key)
	must(err)
	if !ok {
		return nil
	}
	return o.(object)
}

// fire ends the waits that are over.
func (l *life) fire() {
	for _, d := range l.loops {
		d.queue.fire()
	}
}

// pulse is the key under which nodehealth notices that it runs.
const pulse = "/pulse"

func (l *life) nodehealth() *driven {
	for _, d := range l.loops {
		if d.Name() == "nodehealth" {
			return d
		}
	}
	return nil
}

// nextPulse is when nodehealth looks at its clock next; false if it does not run, or
// has not done so for so long that it is about to.
func (l *life) nextPulse() (time.Duration, bool) {
	d := l.nodehealth()
	if d == nil || l.ctx.Err() != nil {
		return 0, false
	}
	at, waits := d.queue.waits[pulse]
	return at, waits
}

// beat lets nodehealth look at its clock.
func (l *life) beat() {
	d := l.nodehealth()
	delete(d.queue.waits, pulse)
	d.queue.Add(pulse)
	l.step(task{d, pulse})
}

func (l *life) isCaughtUp() bool {
	return !slices.ContainsFunc(l.streams, (*stream).isBehind)
}

var errNoAnswer = errors.New("http2: client connection lost")

// call is one request on its way: it may be refused, fail, take effect unheard,
// or be the last thing the process does; and meanwhile the world goes on.
func (l *life) call(ctx context.Context, r request, do func(*api) (object, error)) (object, error) {
	w := l.w
	if err := cmp.Or(l.ctx.Err(), ctx.Err()); err != nil { // not every caller passes the process's context on
		return nil, err
	}
	s := l.syncs[len(l.syncs)-1]
	w.interleave()
	if err := l.ctx.Err(); err != nil {
		return nil, err
	}
	fault := w.drawFault(r)
	if fault == crashBefore {
		w.crash()
		return nil, l.ctx.Err()
	}
	if err := refusal(fault, r); err != nil {
		w.noteCall(s, r, err)
		return nil, err
	}
	w.caller, w.calling = s, r.verb
	w.judge(s, r)
	before := w.api.revs
	o, err := do(w.api)
	w.caller = nil
	if r.isWrite() {
		w.writes++
		w.noteCall(s, r, err)
		w.judged(s, r, o, err, w.api.revs > before)
		if r.verb == "create" && o != nil {
			s.made = append(s.made, made{r.res, o})
		}
	}
	switch fault {
	case crashAfter:
		w.crash()
		return nil, l.ctx.Err()
	case none, failed, refused, conflicted, crashBefore:
	case answerLost:
		if err == nil && r.isWrite() {
			w.note("  … and its answer is lost")
			w.ledger.unheard(s, r, o)
			w.slicesKnown = false
			w.silences.turned = false // it cannot know that it took its turn
		}
		return nil, errNoAnswer
	}
	return o, err
}

type fault int

const (
	none fault = iota
	failed
	refused
	conflicted
	answerLost
	crashBefore
	crashAfter
)

// refusal is the answer of a request that has no effect; nil: it has.
func refusal(f fault, r request) error {
	gr := group(r.res)
	switch f {
	case failed:
		return apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
	case refused:
		return apierrors.NewForbidden(gr, r.key, errors.New("exceeded quota"))
	case conflicted:
		return conflict(r.res, r.key, "the object has been modified")
	case none, answerLost, crashBefore, crashAfter:
	}
	return nil
}

// drawFault chooses what becomes of a request.
func (w *world) drawFault(r request) fault {
	n := w.rng.IntN(1000)
	switch {
	case !w.faults:
		return none
	case w.profile.crashes && n < 8:
		return crashBefore
	case w.profile.crashes && n < 16:
		return crashAfter
	case w.profile.errors:
		return errorAt(n, r)
	}
	return none
}

// errorAt is what a request draws in a seed with errors: one in twenty fails in
// some way, of lists one in seven.
func errorAt(n int, r request) fault {
	switch {
	case r.verb == "list" && n >= 850: // of several that are needed
		return failed
	case n < 950:
		return none
	case n < 965:
		return failed
	case n < 975 && r.verb == "create":
		return refused
	case n < 985 && r.isWrite() && r.verb != "create":
		return conflicted
	case n >= 990:
		return answerLost
	}
	return none
}

// logTo puts what the loops log into the trace.
type logTo struct{ w *world }

func (h logTo) Enabled(_ context.Context, level slog.Level) bool {
	return h.w.isTraced() && level >= slog.LevelInfo
}
func (h logTo) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h logTo) WithGroup(string) slog.Handler      { return h }
func (h logTo) Handle(_ context.Context, r slog.Record) error {
	line := "  log: " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "stack" {
			line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		}
		return true
	})
	h.w.note("%s", line)
	return nil
}

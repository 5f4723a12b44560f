package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Options say which run is made.
type Options struct {
	Seed uint64
	// Rounds of faults, each followed by one without, and the steps of a round;
	// 0: the defaults.
	Rounds, Steps int
	// Skip leaves out steps, by number.
	Skip map[int]bool
	// Part leaves out the run, unless its seed has this: a name that [profile.has] knows.
	Part string
	// Trace records what happens, which costs as much as the run itself.
	Trace bool
}

const (
	defaultRounds = 3
	defaultSteps  = 60
)

// Result is what became of a run. Broken is empty when every promise was kept.
type Result struct {
	Seed   uint64
	Broken string
	Step   int  // at which it broke
	Writes int  // by the loops
	Left   bool // out: the seed has not the part
	Trace  []string
}

// profile is what goes wrong in a run. Runs without losses are the strict ones:
// there floor and ceiling have no excuse.
type profile struct {
	errors, crashes, losses, jumps, lag bool
	// silence: agents fall silent, and nodehealth and tainteviction run. Their
	// clock is monotonic, so it does not jump.
	silence bool
	// namespaces come and go, and what ends them and fills them runs.
	namespaces bool
	// services are there, and what shows their Pods runs.
	services bool
	// balancers: some Services are of type LoadBalancer; mirrors: users write Endpoints
	// by hand; addresses: Services have addresses of their own. Only with services.
	balancers, mirrors, addresses bool
}

// has says whether a run has the loops of a part; all have those of "".
func (p profile) has(part string) bool {
	return map[string]bool{
		"": true, "silence": p.silence, "namespaces": p.namespaces, "services": p.services,
		"balancers": p.balancers, "mirrors": p.mirrors, "addresses": p.addresses,
	}[part]
}

// world is one run.
type world struct {
	opts    Options
	rng     *rand.Rand
	profile profile
	faults  bool
	// lastFault: one is still to come, see [life.vanish].
	lastFault bool
	clock     *worldClock
	api       *api
	ledger    *ledger
	life      *life

	caller       *syncing // whose request takes effect now; nil: a user's or the agent's
	calling      string   // its verb
	targetServed bool     // the Pod it is about was available
	mayBreach    string   // what the request under way would break if it took effect
	step         int
	writes       int
	nested       int
	jumped       time.Duration
	broken       string
	brokenAt     int
	trace        []string
	silences     *silences
	copies       [][2]object // what was stored, and what it was then
	late         []late      // users' creates under way
	slow         []slow      // Services whose addresses are there already
	leaving      leaving
	// slicesKnown: the loop can know of all EndpointSlices, since it made them and was
	// answered.
	slicesKnown bool
}

// Run makes one run.
func Run(o Options) Result {
	if o.Rounds == 0 {
		o.Rounds = defaultRounds
	}
	if o.Steps == 0 {
		o.Steps = defaultSteps
	}
	w := &world{opts: o, clock: newClock(), silences: newSilences(), leaving: leaving{}}
	w.api = newAPI(w.clock.Now)
	w.ledger = newLedger(w)
	w.api.changed = func(res resource, before, after object) {
		w.ledger.changed(res, before, after)
		w.revisionsGrow(res, before, after)
		w.silenceChanged(res, before, after)
		w.namespaceChanged(res, before, after)
		w.addressesChanged(res, before, after)
	}
	if o.Trace {
		w.api.stored = func(o object) { w.copies = append(w.copies, [2]object{o, clone(o)}) }
	}
	w.reseed(0)
	w.profile = profile{
		errors: w.rng.IntN(2) == 0, crashes: w.rng.IntN(3) == 0, losses: w.rng.IntN(3) > 0,
		jumps: w.rng.IntN(4) == 0, lag: w.rng.IntN(3) > 0, silence: w.rng.IntN(3) == 0,
	}
	w.profile.jumps = w.profile.jumps && !w.profile.silence
	w.profile.namespaces = w.rng.IntN(2) == 0
	w.profile.services = w.rng.IntN(2) == 0
	w.profile.balancers = w.profile.services && w.rng.IntN(2) == 0
	w.profile.mirrors = w.profile.services && w.rng.IntN(2) == 0
	w.profile.addresses = w.profile.services && w.rng.IntN(2) == 0
	if !w.profile.has(o.Part) {
		return Result{Seed: o.Seed, Left: true}
	}
	w.note("profile %+v", w.profile)
	w.beginNamespaces()
	w.beginAddresses()
	w.makeNode("node-0", 1600)
	w.makeNode("node-1", 1000)
	w.begin()
	for range o.Rounds {
		w.round()
	}
	w.life.kill()
	w.checkUntouched()
	return Result{Seed: o.Seed, Broken: w.broken, Step: w.brokenAt, Writes: w.writes, Trace: w.trace}
}

// checkUntouched compares every object that was ever stored with the copy taken
// then: caches share it, so a loop that writes to what it was given is found out.
// Only traced runs pay for the copies.
func (w *world) checkUntouched() {
	for _, pair := range w.copies {
		if !equality.Semantic.DeepEqual(pair[0], pair[1]) {
			w.breach("somebody wrote into %s of version %s, which caches hold", keyOf(pair[1]), pair[1].GetResourceVersion())
		}
	}
}

// reseed makes the generator of one step.
func (w *world) reseed(step int) { w.rng = rand.New(rand.NewPCG(w.opts.Seed, uint64(step))) }

// round is some steps with faults, and then the world without.
func (w *world) round() {
	w.faults = true
	for range w.opts.Steps {
		w.step++
		if w.broken != "" {
			return
		}
		if !w.opts.Skip[w.step] {
			w.reseed(w.step)
			if w.profile.isBusy() && w.rng.IntN(3) == 0 {
				w.doOneOf(w.trafficActions())
			}
			w.act()
		}
	}
	if w.broken == "" {
		w.settle()
	}
}

// act is one step.
func (w *world) act() {
	switch n := w.rng.IntN(100); {
	case n < 14:
		w.userActs()
	case n < 34:
		for range 1 + w.rng.IntN(8) {
			w.agentActs()
		}
	case n < 60:
		w.deliverSome()
	case n < 90:
		for range 1 + w.rng.IntN(8) {
			w.workSome()
		}
	case n < 97:
		limit := 12_000
		if len(w.late) > 0 {
			limit = 200 // else none would be late for long
		}
		w.pass(time.Duration(w.rng.IntN(limit)) * time.Millisecond)
	case n < 98 && w.profile.crashes:
		w.crash()
	case n < 99 && w.profile.jumps:
		w.jump()
	}
	w.land(len(w.late) > 0 && w.rng.IntN(12) == 0)
	w.restartIfDead()
	w.ledger.settleAccounts()
}

// deliverSome moves the watches on. Where caches may lag, one of them by a few
// events; else all to the end.
func (w *world) deliverSome() {
	if !w.profile.lag {
		w.deliverAll()
		return
	}
	for range 1 + w.rng.IntN(6) {
		s := w.life.streams[w.rng.IntN(len(w.life.streams))]
		switch w.rng.IntN(12) {
		case 0:
			s.relist()
		case 1:
			s.repeat()
		default:
			for range 1 + w.rng.IntN(8) {
				s.deliver()
			}
		}
	}
}

func (w *world) deliverAll() {
	for _, s := range w.life.streams {
		for s.isBehind() {
			s.deliver()
		}
	}
}

// workSome syncs one key that is ready.
func (w *world) workSome() {
	if ready := w.life.ready(); len(ready) > 0 && w.life.ctx.Err() == nil {
		w.life.step(ready[w.rng.IntN(len(ready))])
	}
}

// interleave is what others do between two requests of a sync.
func (w *world) interleave() {
	if !w.faults || w.nested > 1 || w.rng.IntN(5) > 0 {
		return
	}
	w.nested++
	switch w.rng.IntN(6) {
	case 0:
		w.userActs()
	case 1, 2:
		w.agentActs()
	case 3:
		w.deliverSome()
	case 4, 5:
		w.workSome()
	}
	w.nested--
}

// pass lets time go by, in which agents speak and nodehealth notices that it runs.
func (w *world) pass(d time.Duration) {
	w.land(w.isTooLate(d))
	w.landSlow(d)
	for end := w.clock.passed + d; ; {
		next := end
		if at, beats := w.life.nextPulse(); beats && at < end {
			next = max(at, w.clock.passed)
		}
		w.clock.passed = next
		w.agentsRenew()
		if next == end {
			break
		}
		w.life.beat()
	}
	w.life.fire()
}

// jump sets the wall clock forward or back; waits under way do not notice.
func (w *world) jump() {
	by := time.Duration(w.rng.IntN(7200)-3600) * time.Second
	w.land(true)
	w.landSlow(time.Hour)
	w.clock.offset += by
	w.jumped += max(by, -by)
	w.note("the clock jumps by %s", by)
	w.ledger.loseAll()
}

func (w *world) breach(format string, args ...any) {
	if w.broken == "" {
		w.broken, w.brokenAt = fmt.Sprintf(format, args...), w.step
		w.note("BROKEN: %s", w.broken)
	}
}

func (w *world) isTraced() bool { return w.opts.Trace }

func (w *world) note(format string, args ...any) {
	if w.opts.Trace {
		w.trace = append(w.trace, fmt.Sprintf("%4d %8.3fs ", w.step, w.clock.passed.Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *world) noteCall(s *syncing, r request, err error) {
	if !w.opts.Trace {
		return
	}
	result := ""
	if err != nil {
		result = ": " + err.Error()
	}
	w.note("  %s (%s): %s %s%s", s.loop, s.key, r, r.body, result)
}

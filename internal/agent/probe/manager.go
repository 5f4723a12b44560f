package probe

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/schedule"
)

// Manager probes the containers that it is told of. Its methods may be called from
// any goroutine, also from OnChange and OnFailure.
type Manager struct {
	options  Options
	schedule *schedule.Schedule
	prober   *prober
	born     time.Time
	alive    context.Context
	end      context.CancelFunc

	mu   sync.Mutex
	pods map[types.UID]map[string]*subject
}

// subject is one container with its probes.
type subject struct {
	target  Target
	started bool // startup has succeeded, or there is no such probe
	probes  map[Kind]*worker
	ctx     context.Context
	cancel  context.CancelFunc
}

// worker is one probe of one container. Its fields are guarded by Manager.mu.
type worker struct {
	kind     Kind
	spec     *v1.Probe
	tally    tally
	held     bool // until the container is replaced
	probing  bool
	last     time.Time     // when the last attempt began
	look     look          // what is looked at ahead of the period
	timer    func() bool   // takes the next attempt back
	firstLag time.Duration // jitter of the first attempt
}

// NewManager returns a Manager without containers. Nothing runs until it has some.
func NewManager(options Options) *Manager {
	options = options.withDefaults()
	alive, end := context.WithCancel(context.Background())
	return &Manager{
		options:  options,
		schedule: schedule.New(options.Clock),
		prober:   newProber(options),
		born:     options.Clock.Now(),
		alive:    alive,
		end:      end,
		pods:     map[types.UID]map[string]*subject{},
	}
}

// Ensure starts the probes of a running container, or takes note of what changed
// about it (address, deletion of its Pod). Another ContainerID under the same name
// replaces the container before. It is cheap to call again.
func (m *Manager) Ensure(target Target) {
	var settled []Observation
	defer func() {
		for _, observation := range settled {
			m.options.OnChange(observation)
		}
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.alive.Err() != nil {
		return
	}
	uid, name := target.Pod.UID, target.Container.Name
	current := m.pods[uid][name]
	switch {
	case current == nil, current.target.ContainerID != target.ContainerID:
		if current != nil {
			current.stop()
		}
		current = m.begin(target)
		if current == nil {
			m.forget(uid, name)
			return
		}
		if m.pods[uid] == nil {
			m.pods[uid] = map[string]*subject{}
		}
		m.pods[uid][name] = current
	default:
		current.target = target
	}
	settled = m.quiet(current)
	m.plan(current)
}

// begin makes the probes of a container; nil if it has none.
func (m *Manager) begin(target Target) *subject {
	made := &subject{target: target, probes: map[Kind]*worker{}}
	for kind, spec := range map[Kind]*v1.Probe{
		Startup:   target.Container.StartupProbe,
		Liveness:  target.Container.LivenessProbe,
		Readiness: target.Container.ReadinessProbe,
	} {
		if spec == nil || kind == Startup && target.Started {
			continue
		}
		made.probes[kind] = &worker{kind: kind, spec: spec, firstLag: m.lag(target, spec)}
	}
	if len(made.probes) == 0 {
		return nil
	}
	made.started = made.probes[Startup] == nil
	made.ctx, made.cancel = context.WithCancel(m.alive)
	return made
}

// lag spreads the first attempts after a restart of the agent over the period, as
// all containers become known at once then.
func (m *Manager) lag(target Target, spec *v1.Probe) time.Duration {
	period := period(spec)
	if !target.StartedAt.Before(m.born) || m.options.Clock.Since(m.born) >= period {
		return 0
	}
	return time.Duration(m.options.Jitter() * float64(period))
}

// quiet ends what may no longer fail in a Pod that is being deleted.
func (m *Manager) quiet(s *subject) []Observation {
	if s.target.Pod.DeletionTimestamp == nil {
		return nil
	}
	var settled []Observation
	for _, kind := range []Kind{Startup, Liveness} {
		w := s.probes[kind]
		if w == nil || w.held {
			continue
		}
		w.hold()
		if w.tally.settled != Success {
			w.tally.settled = Success
			settled = append(settled, s.observation(w, Success, ""))
		}
	}
	s.started = true
	return settled
}

// plan puts every probe that may run and does not wait yet on the schedule.
// Callers hold m.mu.
func (m *Manager) plan(s *subject) {
	for _, w := range s.probes {
		if w.held || w.probing || w.timer != nil || w.kind != Startup && !s.started {
			continue
		}
		now := m.options.Clock.Now()
		delay := time.Duration(w.spec.InitialDelaySeconds) * time.Second
		at := s.target.StartedAt.Add(delay)
		if latest := now.Add(delay); at.After(latest) {
			at = latest // the wall clock was set back since the start
		}
		if w.last.IsZero() {
			if lagged := now.Add(w.firstLag); at.Before(lagged) {
				at = lagged
			}
		} else {
			at = w.last.Add(period(w.spec))
			at = w.planLook(at)
		}
		w.timer = m.schedule.After(max(at.Sub(now), 0), func() { m.start(s, w) })
	}
}

// period has a floor: a spec that was never defaulted must not spin.
func period(spec *v1.Probe) time.Duration {
	return max(time.Duration(spec.PeriodSeconds)*time.Second, time.Second)
}

// start begins an attempt in a goroutine of its own.
func (m *Manager) start(s *subject, w *worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.timer = nil
	if s.ctx.Err() != nil || w.held {
		return
	}
	w.probing = true
	w.begin(m.options.Clock.Now())
	target := s.target
	go func() {
		attempt := m.prober.attempt(s.ctx, w.kind, w.spec, target)
		m.finish(s, w, attempt)
	}()
}

// finish counts an attempt, tells of it, and plans the next one.
func (m *Manager) finish(s *subject, w *worker, made attempt) {
	m.mu.Lock()
	gone := s.ctx.Err() != nil || w.held
	if w.look.under && made.result != Success {
		m.mu.Unlock()
		m.settle(s, w, false) // as if it had not been looked at
		return
	}
	changed := false
	if !gone {
		w.tally, changed = w.tally.add(made.result, w.spec.SuccessThreshold, w.spec.FailureThreshold)
	}
	seen := s.observation(w, made.result, made.output)
	m.mu.Unlock()
	if made.reason != "" && !gone {
		event := seen
		event.Reason, event.Message = made.reason, made.eventMessage(w.kind)
		m.options.OnFailure(event)
	}
	if changed {
		m.options.OnChange(seen)
	}
	m.settle(s, w, changed)
}

// settle is the end of an attempt: what it decided takes effect.
func (m *Manager) settle(s *subject, w *worker, changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.probing = false
	if s.ctx.Err() != nil {
		return
	}
	if changed && (w.kind == Startup || w.kind == Liveness && w.tally.settled == Failure) {
		// kubelet stops here too: the container is started, or will be replaced.
		w.hold()
		if w.tally.settled == Success {
			s.started = true
		}
	}
	m.plan(s)
}

func (w *worker) hold() {
	w.held = true
	if w.timer != nil {
		w.timer()
		w.timer = nil
	}
}

func (s *subject) stop() {
	s.cancel()
	for _, w := range s.probes {
		w.hold()
	}
}

func (s *subject) observation(w *worker, result Result, message string) Observation {
	return Observation{
		PodUID:      s.target.Pod.UID,
		Container:   s.target.Container.Name,
		ContainerID: s.target.ContainerID,
		Kind:        w.kind,
		Result:      result,
		Message:     message,
		Probe:       w.spec,
	}
}

// Remove ends the probes of a container; an attempt under way is cancelled.
func (m *Manager) Remove(podUID types.UID, container string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.pods[podUID][container]; s != nil {
		s.stop()
	}
	m.forget(podUID, container)
}

func (m *Manager) forget(podUID types.UID, container string) {
	delete(m.pods[podUID], container)
	if len(m.pods[podUID]) == 0 {
		delete(m.pods, podUID)
	}
}

// RemovePod ends the probes of all containers of a Pod.
func (m *Manager) RemovePod(podUID types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.pods[podUID] {
		s.stop()
	}
	delete(m.pods, podUID)
}

// Stop ends everything, for good.
func (m *Manager) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, containers := range m.pods {
		for _, s := range containers {
			s.stop()
		}
	}
	clear(m.pods)
	m.end()
	m.schedule.Stop()
}

package agent

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"pgregory.net/rapid"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
	"mend/internal/agent/status"
)

// model is a Pod, a runtime and an agent's memory, driven by the plan alone:
// flights land in any order, fail, or are lost with the agent.
type model struct {
	t       *rapid.T
	o       Observed
	now     time.Time
	serial  int
	removed bool // the API object is gone
	forgot  bool
}

var podShapes = map[string]func(*v1.Pod){
	"one container":  func(*v1.Pod) {},
	"two containers": func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "x", Image: "x:1"}) },
	"init":           inits(v1.Container{Name: "a", Image: "img:1"}, v1.Container{Name: "b", Image: "img:1"}),
	"sidecar":        inits(sidecar("a"), v1.Container{Name: "b", Image: "img:1"}, sidecar("c")),
}

func newModel(t *rapid.T) *model {
	shape := rapid.SampledFrom(slices.Sorted(maps.Keys(podShapes))).Draw(t, "shape")
	restart := rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}).Draw(t, "policy")
	m := &model{t: t, o: fresh(podShapes[shape], policy(restart)), now: epoch}
	m.o.Gated = rapid.Bool().Draw(t, "gated")
	return m
}

// step plans and launches, as the worker does.
func (m *model) step() Plan {
	p := plan(m.o, m.now)
	for _, a := range p.Actions {
		m.check(a)
		if a.Kind == Abandon {
			delete(m.o.Flights, a.ID)
			continue
		}
		m.o.Flights[a.lane()] = Flight{Action: a, Since: m.now}
	}
	if p.Ending && m.o.EndingSince.IsZero() {
		m.o.EndingSince = m.now
	}
	m.o.Old = p.Status
	return p
}

// write makes the API show the status last planned.
func (m *model) write() {
	if m.o.Gone || m.o.Old.Phase == "" {
		return
	}
	was := m.o.Pod.Status.Phase
	m.o.Pod = m.o.Pod.DeepCopy()
	m.o.Pod.Status = status.Merge(m.o.Pod, m.o.Pod.Status, m.o.Old)
	now := m.o.Pod.Status.Phase
	if podutil.IsPodPhaseTerminal(was) && was != now {
		m.t.Fatalf("phase went from %s to %s", was, now)
	}
	if podutil.IsPodPhaseTerminal(now) && len(m.o.Runtime.Live()) > 0 {
		m.t.Fatalf("phase %s while containers run", now)
	}
}

// check are the promises an action must keep when it is planned.
func (m *model) check(a Action) {
	if a.Kind == StartContainer {
		m.checkStart(a)
	}
	if a.Kind == KillContainer {
		m.checkKill(a)
	}
	if a.Kind == RunSandbox && slices.ContainsFunc(m.o.Runtime.Sandboxes, func(s podruntime.Sandbox) bool { return s.Ready || s.Attempt >= a.Attempt }) {
		m.t.Fatalf("run sandbox attempt %d beside %+v", a.Attempt, m.o.Runtime.Sandboxes)
	}
	if slices.Contains([]Kind{RemoveContainer, RemoveSandbox, TearDown}, a.Kind) {
		for _, c := range m.o.Runtime.Live() {
			if a.Kind == TearDown || c.ID == a.ID || c.SandboxID == a.ID {
				m.t.Fatalf("%s %s while %s runs", a.Kind, a.ID, c.ID)
			}
		}
	}
	if (a.Kind == DeletePod || a.Kind == Forget) && (!m.o.Runtime.Empty() || !m.o.TornDown) {
		m.t.Fatalf("%s while something is left: %+v", a.Kind, m.o.Runtime)
	}
}

// checkKill: a deleted Pod's containers end once requests no longer reach it or most
// of the grace period is over, and then within that period, give or take a second.
func (m *model) checkKill(a Action) {
	pod := m.o.Pod
	if !m.o.Gated || m.o.Gone || pod.DeletionTimestamp == nil {
		return
	}
	grace := time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	since := m.o.EndingSince
	if since.IsZero() {
		since = m.now
	}
	if m.o.LeftAt.IsZero() && m.now.Sub(since) < grace*3/4 {
		m.t.Fatalf("%s ends %v after the deletion though requests may reach it", a.ID, m.now.Sub(since))
	}
	held := m.o.LeftAt.Sub(since)
	if m.o.LeftAt.IsZero() {
		held = grace * 3 / 4
	}
	if most := max(grace-held+time.Second, minGrace*time.Second); time.Duration(a.Grace)*time.Second > most {
		m.t.Fatalf("%s gets %d s after %v of %v", a.ID, a.Grace, held, grace)
	}
}

func (m *model) checkStart(a Action) {
	active := m.o.Runtime.ActiveSandbox()
	if active == nil || active.ID != a.ID {
		m.t.Fatalf("start in sandbox %q that is not active", a.ID)
	}
	for _, c := range m.o.Runtime.Instances(a.Container) {
		if c.Phase != podruntime.Exited {
			m.t.Fatalf("start of %s while %s is %s", a.Container, c.ID, c.Phase)
		}
		if c.Attempt >= a.Attempt {
			m.t.Fatalf("start of %s with attempt %d while there is attempt %d", a.Container, a.Attempt, c.Attempt)
		}
	}
	if m.o.Pod.DeletionTimestamp != nil || podutil.IsPodPhaseTerminal(m.o.Pod.Status.Phase) {
		m.t.Fatalf("start in a Pod that ends")
	}
}

// land carries out what is under way in a lane.
func (m *model) land(lane string) {
	a := m.o.Flights[lane].Action
	delete(m.o.Flights, lane)
	m.o.Runtime = podruntime.State{Sandboxes: slices.Clone(m.o.Runtime.Sandboxes), Containers: slices.Clone(m.o.Runtime.Containers)}
	delete(m.o.Failures, lane)
	switch a.Kind {
	case SetUpVolumes:
		m.o.VolumesReady, m.o.TornDown = true, false
	case TearDown:
		m.o.TornDown, m.o.VolumesReady = true, false
	case RunSandbox:
		m.serial++
		s := box(fmt.Sprintf("s%d", m.serial), a.Attempt)
		s.CreatedAt = m.now
		m.o.Runtime.Sandboxes = append([]podruntime.Sandbox{s}, m.o.Runtime.Sandboxes...)
	case LeaveEndpoints:
		m.o.LeftAt = m.now
	case EnsureImage:
		m.o.Images[a.Container] = podspec.Image{Ref: "x"}
	case StartContainer:
		m.started(a)
	case KillContainer:
		m.exit(a.ID, 137)
	case StopSandbox:
		m.loseSandbox(a.ID)
	case RemoveContainer:
		m.o.Runtime.Containers = slices.DeleteFunc(m.o.Runtime.Containers, func(c podruntime.Container) bool { return c.ID == a.ID })
	case RemoveSandbox:
		m.o.Runtime.Sandboxes = slices.DeleteFunc(m.o.Runtime.Sandboxes, func(s podruntime.Sandbox) bool { return s.ID == a.ID })
		m.o.Runtime.Containers = slices.DeleteFunc(m.o.Runtime.Containers, func(c podruntime.Container) bool { return c.SandboxID == a.ID })
	case DeletePod:
		m.removed, m.o.Gone = true, true
	case Forget:
		m.forgot = true
	case Abandon:
	}
}

func (m *model) started(a Action) {
	delete(m.o.Images, a.Container)
	last := m.o.Runtime.Latest(a.Container)
	if last != nil {
		m.o.Restarts[a.Container] = m.o.Restarts[a.Container].raised(last.FinishedAt, m.now)
	}
	if !slices.ContainsFunc(m.o.Runtime.Sandboxes, func(s podruntime.Sandbox) bool { return s.ID == a.ID && s.Ready }) {
		return // the sandbox went away meanwhile
	}
	m.serial++
	c := running(a.Container, fmt.Sprintf("%s%d", a.Container, m.serial), a.ID)
	c.Attempt, c.CreatedAt, c.StartedAt = a.Attempt, m.now, m.now
	m.o.Runtime.Containers = append([]podruntime.Container{c}, m.o.Runtime.Containers...)
	live := 0
	for _, other := range m.o.Runtime.Live() {
		if other.Name == c.Name {
			live++
		}
	}
	if live > 1 {
		m.t.Fatalf("%d live instances of %s", live, c.Name)
	}
}

func (m *model) exit(id string, code int32) {
	for i := range m.o.Runtime.Containers {
		if c := &m.o.Runtime.Containers[i]; c.ID == id && c.Phase == podruntime.Running {
			c.Phase, c.ExitCode, c.FinishedAt, c.Reason = podruntime.Exited, code, m.now, "Error"
		}
	}
}

// loseSandbox stops a sandbox and, as runtimes do, what runs in it.
func (m *model) loseSandbox(id string) {
	for i := range m.o.Runtime.Sandboxes {
		if m.o.Runtime.Sandboxes[i].ID == id {
			m.o.Runtime.Sandboxes[i].Ready, m.o.Runtime.Sandboxes[i].IPs = false, nil
		}
	}
	for _, c := range m.o.Runtime.Containers {
		if c.SandboxID == id {
			m.exit(c.ID, 137)
		}
	}
}

// fault does something that the agent did not ask for.
func (m *model) fault() {
	t := m.t
	lanes := slices.Sorted(maps.Keys(m.o.Flights))
	live := m.o.Runtime.Live()
	switch rapid.IntRange(0, 7).Draw(t, "fault") {
	case 0:
		if len(live) > 0 {
			c := rapid.SampledFrom(live).Draw(t, "exits")
			m.o.Runtime.Containers = slices.Clone(m.o.Runtime.Containers)
			m.exit(c.ID, rapid.SampledFrom([]int32{0, 1}).Draw(t, "code"))
		}
	case 1:
		if active := m.o.Runtime.ActiveSandbox(); active != nil {
			m.o.Runtime = podruntime.State{Sandboxes: slices.Clone(m.o.Runtime.Sandboxes), Containers: slices.Clone(m.o.Runtime.Containers)}
			m.loseSandbox(active.ID)
		}
	case 2:
		if m.o.Pod.DeletionTimestamp == nil && !m.o.Gone {
			m.o.Pod = m.o.Pod.DeepCopy()
			deleted(int64(rapid.IntRange(0, 30).Draw(t, "grace")))(m.o.Pod)
		}
	case 3:
		m.restartAgent(lanes)
	case 4:
		if len(lanes) > 0 {
			lane := rapid.SampledFrom(lanes).Draw(t, "fails")
			delete(m.o.Flights, lane)
			m.o.Failures[lane] = Failure{Reason: "CreateContainerError", Count: m.o.Failures[lane].Count + 1, At: m.now,
				RetryAt: m.now.Add(retryDelay(m.o.Failures[lane].Count + 1))}
		}
	case 5:
		m.now = m.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
	case 6:
		if len(live) > 0 {
			c := rapid.SampledFrom(live).Draw(t, "unhealthy")
			m.o.Probes[c.ID] = Probed{Startup: ResultSuccess, Liveness: ResultFailure}
		}
	case 7:
		m.write()
	}
}

// restartAgent loses everything that may be lost; what was under way may have
// happened or not.
func (m *model) restartAgent(lanes []string) {
	for _, lane := range lanes {
		if rapid.Bool().Draw(m.t, "happened") {
			m.land(lane)
		}
	}
	m.o.Flights, m.o.Images, m.o.Failures = map[string]Flight{}, map[string]podspec.Image{}, map[string]Failure{}
	m.o.Restarts, m.o.Probes = map[string]Backoff{}, map[string]Probed{}
	m.o.VolumesReady, m.o.TornDown, m.o.EndingSince, m.o.LeftAt = false, false, time.Time{}, time.Time{}
	if m.o.Gone {
		return
	}
	m.o.Old = m.o.Pod.Status
}

func TestPropertyPromisesHoldInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if m.forgot {
				return
			}
			m.step()
			lanes := slices.Sorted(maps.Keys(m.o.Flights))
			if len(lanes) > 0 && rapid.IntRange(0, 2).Draw(t, "lands") > 0 {
				m.land(rapid.SampledFrom(lanes).Draw(t, "lane"))
				continue
			}
			m.fault()
		}
		m.converge()
	})
}

// converge lets everything succeed until there is nothing to do, and checks that
// the end is right.
func (m *model) converge() {
	m.o.Probes = map[string]Probed{}
	for range 300 {
		if m.forgot {
			return
		}
		m.write()
		p := m.step()
		// Init containers of the model do not end by themselves.
		for i := range m.o.Pod.Spec.InitContainers {
			spec := &m.o.Pod.Spec.InitContainers[i]
			if c := m.o.Runtime.Latest(spec.Name); c != nil && c.Phase == podruntime.Running && !podutil.IsRestartableInitContainer(spec) {
				m.o.Runtime.Containers = slices.Clone(m.o.Runtime.Containers)
				m.exit(c.ID, 0)
			}
		}
		lanes := slices.Sorted(maps.Keys(m.o.Flights))
		for _, lane := range lanes {
			m.land(lane)
		}
		if len(lanes) > 0 || len(p.Actions) > 0 {
			continue
		}
		m.write()
		if again := m.step(); len(again.Actions) > 0 {
			continue
		} else if !again.Recheck.IsZero() {
			m.now = again.Recheck
			continue
		}
		m.atRest()
		return
	}
	m.t.Fatalf("no rest after 300 steps: %+v\n%+v", m.o.Runtime, m.o.Pod.Status)
}

func (m *model) atRest() {
	switch {
	case m.o.Pod.DeletionTimestamp != nil:
		m.t.Fatalf("a deleted Pod is still there: %+v", m.o.Runtime)
	case podutil.IsPodPhaseTerminal(m.o.Pod.Status.Phase):
		if len(m.o.Runtime.Live()) > 0 {
			m.t.Fatalf("a finished Pod runs")
		}
	default:
		for i := range m.o.Pod.Spec.Containers {
			spec := &m.o.Pod.Spec.Containers[i]
			c := m.o.Runtime.LatestActive(spec.Name)
			latest := m.o.Runtime.Latest(spec.Name)
			done := latest != nil && latest.Phase == podruntime.Exited && !podutil.ContainerShouldRestart(*spec, m.o.Pod.Spec, latest.ExitCode)
			if (c == nil || c.Phase != podruntime.Running) && !done {
				m.t.Fatalf("at rest %s does not run: phase %s, %+v", spec.Name, m.o.Pod.Status.Phase, m.o.Runtime)
			}
		}
	}
}

// The plan is a function: the same world gives the same plan, and the world stays
// as it is.
func TestPropertyPlanIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			m.step()
			if lanes := slices.Sorted(maps.Keys(m.o.Flights)); len(lanes) > 0 && rapid.Bool().Draw(t, "lands") {
				m.land(rapid.SampledFrom(lanes).Draw(t, "lane"))
			} else {
				m.fault()
			}
			before := fmt.Sprintf("%+v", m.o)
			first, second := plan(m.o, m.now), plan(m.o, m.now)
			if diff := cmp.Diff(first, second); diff != "" {
				t.Fatalf("two plans of one world:\n%s", diff)
			}
			if after := fmt.Sprintf("%+v", m.o); after != before {
				t.Fatalf("the plan changed the world")
			}
		}
	})
}

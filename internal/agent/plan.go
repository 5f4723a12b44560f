package agent

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/status"
)

// minGrace is the least that a container is given to end, in seconds.
const minGrace = 2

// Plan is what to do next. Actions are independent of one another: each may be
// carried out, or not, in any order.
type Plan struct {
	Actions []Action
	Status  v1.PodStatus
	Notices []Notice
	// Probe are the containers whose probes should run.
	Probe []podruntime.Container
	// Ending says that the Pod's containers are being ended for good.
	Ending bool
	// Recheck is when to look again even if nothing happens; zero is never.
	Recheck time.Time
}

type planner struct {
	o       Observed
	now     time.Time
	plan    Plan
	waiting map[string]status.Waiting
	verdict *status.Verdict
	ended   bool
	// busy: a container start is under way or planned; the next one waits.
	busy bool
}

// plan decides the next steps of one Pod.
func plan(o Observed, now time.Time) Plan {
	o.Runtime = withRetracted(o.Pod, o.Runtime)
	p := &planner{o: o, now: now, waiting: map[string]status.Waiting{}, verdict: o.Refused,
		busy: o.inFlight(StartContainer)}
	p.deadline()
	switch {
	case o.Halt:
		p.halt()
		p.plan.Status = o.Old
		return p.plan
	case p.over():
		p.end()
	default:
		p.run()
		p.probe()
	}
	if !p.ended {
		p.plan.Status = p.status()
	}
	return p.plan
}

// withRetracted counts a container as ended that is to run once only and may have
// begun before its start was taken back. Others begin anew as if nothing had been.
func withRetracted(pod *v1.Pod, state podruntime.State) podruntime.State {
	ended := func(c podruntime.Container) bool {
		spec := findContainer(&pod.Spec, c.Name)
		return c.Retracted && c.MayHaveRun && spec != nil && !podutil.IsContainerRestartable(pod.Spec, *spec)
	}
	if !slices.ContainsFunc(state.Containers, ended) {
		return state
	}
	state.Containers = slices.Clone(state.Containers)
	for i, c := range state.Containers {
		if ended(c) {
			state.Containers[i].Phase = podruntime.Exited
		}
	}
	return state
}

func (p *planner) status() v1.PodStatus { return status.Generate(p.statusInput()) }

func (p *planner) statusInput() status.Input {
	return status.Input{
		Pod: p.o.Pod, Runtime: p.o.Runtime, Old: p.o.Old, HostIPs: p.o.HostIPs, Now: p.now, RuntimeName: p.o.RuntimeName,
		Starting: p.o.starting(), Waiting: p.waiting, Health: p.o.health(), Verdict: p.verdict, Ended: p.ended,
	}
}

// deadline gives the verdict on a Pod that was active for too long.
func (p *planner) deadline() {
	limit := p.o.Pod.Spec.ActiveDeadlineSeconds
	if limit == nil || p.verdict != nil || p.o.Old.StartTime.IsZero() || podutil.IsPodPhaseTerminal(p.o.Old.Phase) {
		return
	}
	at := p.o.Started.Of(p.o.Old.StartTime.Time).Add(time.Duration(*limit) * time.Second)
	if p.now.Before(at) {
		p.lookAgain(at)
		return
	}
	p.verdict = &status.Verdict{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
	p.note(Notice{Key: "deadline", Type: v1.EventTypeNormal, Reason: p.verdict.Reason, Message: p.verdict.Message})
}

// over says whether the Pod is to end, or has ended: nothing of it will be
// started any more.
func (p *planner) over() bool {
	if p.o.Gone || p.o.Pod.DeletionTimestamp != nil || p.verdict != nil {
		return true
	}
	for _, phase := range []v1.PodPhase{p.o.Pod.Status.Phase, p.o.Old.Phase} {
		if podutil.IsPodPhaseTerminal(phase) {
			return true
		}
	}
	if len(p.o.Runtime.Sandboxes) > 0 && len(p.o.Runtime.Containers) > 0 && !p.anyRestartable() &&
		status.SandboxNeeded(p.o.Pod, p.o.Runtime) != "" {
		return true // its sandbox is lost, and it is to run once only
	}
	return podutil.IsPodPhaseTerminal(status.PhaseNow(p.statusInput()))
}

// add plans an action unless its lane is taken or still waits after a failure.
func (p *planner) add(a Action) {
	lane := a.lane()
	if f, failed := p.o.Failures[lane]; failed && p.now.Before(f.RetryAt) {
		p.lookAgain(f.RetryAt)
		return
	}
	if f, taken := p.o.Flights[lane]; taken {
		if a.Kind != KillContainer || f.Action.Kind != KillContainer {
			return
		}
		ends := f.Since.Add(time.Duration(f.Action.Grace) * time.Second)
		if !p.now.Add(time.Duration(a.Grace) * time.Second).Before(ends) {
			return // the one under way ends no later
		}
		a.Again = true
	}
	p.plan.Actions = append(p.plan.Actions, a)
}

func (p *planner) note(n Notice) { p.plan.Notices = append(p.plan.Notices, n) }

func (p *planner) lookAgain(at time.Time) {
	if p.plan.Recheck.IsZero() || at.Before(p.plan.Recheck) {
		p.plan.Recheck = at
	}
}

// kill plans the end of one container.
func (p *planner) kill(c podruntime.Container, grace int64, why string) {
	p.add(Action{Kind: KillContainer, Container: c.Name, ID: c.ID, Grace: max(grace, minGrace), Why: why})
}

// grace is how long the Pod's containers have to end, in seconds.
func (p *planner) grace() int64 {
	switch pod := p.o.Pod; {
	case p.o.Gone, p.o.Orphan:
		return minGrace // it was deleted without grace, or had it
	case pod.DeletionGracePeriodSeconds != nil:
		return *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return minGrace
}

// halt ends everything that runs and changes nothing else.
func (p *planner) halt() {
	if p.killAll() {
		return
	}
	p.stopSandboxes()
}

// killAll ends every container that runs, sidecars last, and says whether any
// does or may soon.
func (p *planner) killAll() bool {
	p.plan.Ending = true
	p.abandon(EnsureImage)
	live := p.o.Runtime.Live()
	var sidecars, others []podruntime.Container
	for _, c := range live {
		if spec := findContainer(&p.o.Pod.Spec, c.Name); spec != nil && p.isSidecar(c.Name) {
			sidecars = append(sidecars, c)
		} else {
			others = append(others, c)
		}
	}
	for _, c := range others {
		p.kill(c, p.grace()-p.leftAfter(), "Stopping container "+c.Name)
	}
	if len(others) == 0 || p.graceSpent() {
		p.killSidecars(sidecars)
	} else if len(sidecars) > 0 {
		p.lookAgain(p.endingSince().Add(time.Duration(p.grace()) * time.Second))
	}
	return len(live) > 0 || p.o.inFlight(StartContainer, RunSandbox)
}

// abandon gives up what is under way of a kind.
func (p *planner) abandon(kind Kind) {
	for _, lane := range slices.Sorted(maps.Keys(p.o.Flights)) {
		if p.o.Flights[lane].Action.Kind == kind {
			p.add(Action{Kind: Abandon, ID: lane, Why: "the Pod ends"})
		}
	}
}

// killSidecars ends sidecars in the reverse of the order they started in, each
// with what is left of the grace period; all at once when it is spent.
func (p *planner) killSidecars(live []podruntime.Container) {
	left := p.grace() - int64(p.now.Sub(p.endingSince())/time.Second)
	specs := p.o.Pod.Spec.InitContainers
	for i := len(specs) - 1; i >= 0; i-- {
		for _, c := range live {
			if c.Name != specs[i].Name {
				continue
			}
			p.kill(c, left, "Stopping container "+c.Name)
			if !p.graceSpent() {
				return
			}
		}
	}
}

func (p *planner) graceSpent() bool {
	return !p.now.Before(p.endingSince().Add(time.Duration(p.grace()) * time.Second))
}

func (p *planner) endingSince() time.Time {
	if p.o.EndingSince.IsZero() {
		return p.now
	}
	return p.o.EndingSince
}

func (p *planner) isSidecar(name string) bool {
	for i := range p.o.Pod.Spec.InitContainers {
		if c := &p.o.Pod.Spec.InitContainers[i]; c.Name == name {
			return podutil.IsRestartableInitContainer(c)
		}
	}
	return false
}

// stopSandboxes says whether any is ready.
func (p *planner) stopSandboxes() bool {
	ready := false
	for _, s := range p.o.Runtime.Sandboxes {
		if s.Ready {
			ready = true
			p.add(Action{Kind: StopSandbox, ID: s.ID, Why: "no container of the Pod runs"})
		}
	}
	return ready
}

// probe names the containers whose probes should run.
func (p *planner) probe() {
	starting := p.o.starting()
	for spec := range eachContainer(&p.o.Pod.Spec) {
		if spec.StartupProbe == nil && spec.LivenessProbe == nil && spec.ReadinessProbe == nil {
			continue
		}
		if c := p.o.Runtime.LatestActive(spec.Name); c != nil && c.Phase == podruntime.Running && !starting[spec.Name] {
			p.plan.Probe = append(p.plan.Probe, *c)
		}
	}
}

// eachContainer yields init containers and regular ones, in order.
func eachContainer(spec *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// findContainer finds a container of any kind.
func findContainer(spec *v1.PodSpec, name string) *v1.Container {
	for c := range podutil.ContainerIter(spec, podutil.AllContainers) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func crashMessage(delay time.Duration, container, pod string) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, container, pod)
}

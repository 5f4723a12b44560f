package agent

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/agent/image"
	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
	"mend/internal/agent/status"
)

// A failed pull shows ErrImagePull for so long before it shows that it waits.
const pullErrorShown = 5 * time.Second

// run brings the Pod towards all containers running: volumes, sandbox, init
// containers one after another, containers.
func (p *planner) run() {
	if !p.o.VolumesReady {
		p.add(Action{Kind: SetUpVolumes, Why: "the Pod's volumes are not in place"})
		return
	}
	if why := status.SandboxNeeded(p.o.Pod, p.o.Runtime); why != "" {
		p.replaceSandbox(why)
		return
	}
	active := p.o.Runtime.ActiveSandbox()
	strays := false
	for _, c := range p.o.Runtime.Live() {
		if c.SandboxID != active.ID {
			strays = true
			p.kill(c, p.grace(), fmt.Sprintf("Container %s runs in a sandbox that was replaced", c.Name))
		}
	}
	if strays {
		return
	}
	p.ephemeral()
	if p.regularDone() {
		// Only sidecars are left, and they are not to keep the Pod alive.
		p.killAll()
		return
	}
	if p.initialize() {
		for i := range p.o.Pod.Spec.Containers {
			p.keep(&p.o.Pod.Spec.Containers[i], p.o.Runtime.Latest(p.o.Pod.Spec.Containers[i].Name))
		}
	}
	p.collect()
}

// regularDone says whether every regular container has ended for good.
func (p *planner) regularDone() bool {
	for i := range p.o.Pod.Spec.Containers {
		spec := &p.o.Pod.Spec.Containers[i]
		c := p.o.Runtime.Latest(spec.Name)
		if c == nil || c.Phase != podruntime.Exited || podutil.ContainerShouldRestart(*spec, p.o.Pod.Spec, c.ExitCode) {
			return false
		}
	}
	return true
}

// replaceSandbox ends what is left in old sandboxes and then runs a new one.
func (p *planner) replaceSandbox(why string) {
	attempt := uint32(0)
	if len(p.o.Runtime.Sandboxes) > 0 {
		attempt = p.o.Runtime.Sandboxes[0].Attempt + 1
	}
	if attempt > 0 {
		p.note(Notice{Key: fmt.Sprintf("sandbox/%d", attempt), Type: v1.EventTypeNormal, Reason: "SandboxChanged",
			Message: "Pod sandbox changed, it will be killed and re-created."})
		if p.killAll() || p.stopSandboxes() {
			return
		}
	}
	p.add(Action{Kind: RunSandbox, Attempt: attempt, Why: why})
}

// anyRestartable says whether a regular container may be started again.
func (p *planner) anyRestartable() bool {
	for i := range p.o.Pod.Spec.Containers {
		if podutil.IsContainerRestartable(p.o.Pod.Spec, p.o.Pod.Spec.Containers[i]) {
			return true
		}
	}
	return false
}

// ephemeral starts each ephemeral container once.
func (p *planner) ephemeral() {
	for i := range p.o.Pod.Spec.EphemeralContainers {
		c := (*v1.Container)(&p.o.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		switch latest := p.o.Runtime.Latest(c.Name); {
		case latest == nil:
			p.start(c)
		case latest.Phase == podruntime.Created && !p.o.starting()[c.Name]:
			p.removeUnstarted(*latest)
		}
	}
}

// initialize works on the init containers and says whether all have done their
// part: a plain one has ended with 0, a sidecar has started.
func (p *planner) initialize() bool {
	specs := p.o.Pod.Spec.InitContainers
	if len(specs) == 0 {
		return true
	}
	// The last init container that exists marks how far it got: earlier ones may
	// have been removed since. A regular container means all the way.
	frontier := -1
	for i := range specs {
		if p.o.Runtime.LatestActive(specs[i].Name) != nil || p.o.starting()[specs[i].Name] {
			frontier = i
		}
	}
	if p.regularStarted() {
		frontier = len(specs)
	}
	for i := range specs[:max(frontier, 0)] {
		if podutil.IsRestartableInitContainer(&specs[i]) {
			p.keep(&specs[i], p.o.Runtime.LatestActive(specs[i].Name))
		}
	}
	switch {
	case frontier == len(specs):
		return true
	case frontier < 0:
		p.start(&specs[0])
		return false
	case !p.passed(&specs[frontier]):
		return false
	case frontier+1 < len(specs):
		p.start(&specs[frontier+1])
		return false
	}
	return true
}

func (p *planner) regularStarted() bool {
	for i := range p.o.Pod.Spec.Containers {
		if p.o.Runtime.LatestActive(p.o.Pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// passed works on the init container at the frontier and says whether the next
// may go.
func (p *planner) passed(spec *v1.Container) bool {
	c := p.o.Runtime.LatestActive(spec.Name)
	if podutil.IsRestartableInitContainer(spec) {
		p.keep(spec, c)
		return c != nil && c.Phase == podruntime.Running && !p.o.starting()[spec.Name] &&
			p.o.health()[c.ID].Started
	}
	if c != nil && c.Phase == podruntime.Exited && c.ExitCode == 0 && c.Reason != "OOMKilled" {
		return true
	}
	if c != nil && c.Phase == podruntime.Running {
		return false
	}
	p.keep(spec, c)
	return false
}

// keep brings one container towards running. c is its newest instance, nil if
// there is none.
func (p *planner) keep(spec *v1.Container, c *podruntime.Container) {
	if p.o.starting()[spec.Name] {
		return
	}
	switch {
	case c == nil:
		p.start(spec)
	case c.Phase == podruntime.Created:
		p.removeUnstarted(*c)
	case c.Phase == podruntime.Unknown:
		p.kill(*c, p.grace(), `Container is in "unknown" state, try killing it before restart`)
	case c.Phase == podruntime.Exited:
		if podutil.ContainerShouldRestart(*spec, p.o.Pod.Spec, c.ExitCode) {
			p.start(spec)
		}
	case c.Phase == podruntime.Running:
		p.checkRunning(spec, *c)
	}
}

// removeUnstarted makes room for a new try under the same attempt number.
func (p *planner) removeUnstarted(c podruntime.Container) {
	p.add(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID, Attempt: c.Attempt, Why: "it was created and never started"})
}

// checkRunning ends a container whose definition changed or whose probe says it
// is broken.
func (p *planner) checkRunning(spec *v1.Container, c podruntime.Container) {
	kind := "Container"
	if p.isSidecar(spec.Name) {
		kind = "Init container"
	}
	suffix := ""
	if podutil.IsContainerRestartable(p.o.Pod.Spec, *spec) {
		suffix = ", will be restarted"
	}
	seen := p.o.Probes[c.ID]
	switch {
	case c.Hash != "" && c.Hash != podspec.Hash(spec):
		p.kill(c, p.grace(), fmt.Sprintf("%s %s definition changed, will be restarted", kind, spec.Name))
	case seen.Liveness == ResultFailure:
		p.kill(c, p.probeGrace(spec.LivenessProbe), fmt.Sprintf("%s %s failed liveness probe%s", kind, spec.Name, suffix))
	case seen.Startup == ResultFailure:
		p.kill(c, p.probeGrace(spec.StartupProbe), fmt.Sprintf("%s %s failed startup probe%s", kind, spec.Name, suffix))
	}
}

func (p *planner) probeGrace(probe *v1.Probe) int64 {
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return *probe.TerminationGracePeriodSeconds
	}
	return p.grace()
}

// start plans the next step towards a new instance, or says why it waits.
func (p *planner) start(spec *v1.Container) {
	name := spec.Name
	latest := p.o.Runtime.Latest(name)
	if latest != nil && latest.Phase == podruntime.Exited && p.crashed(spec, latest) {
		return
	}
	p.showFailure(name)
	if _, ready := p.o.Images[name]; !ready {
		p.add(Action{Kind: EnsureImage, Container: name, Why: fmt.Sprintf("container %s needs image %s", name, spec.Image)})
		return
	}
	if p.busy {
		return
	}
	before := len(p.plan.Actions)
	p.add(Action{Kind: StartContainer, Container: name, ID: p.o.Runtime.ActiveSandbox().ID,
		Attempt: p.nextAttempt(name, latest), Why: startReason(name, latest)})
	p.busy = len(p.plan.Actions) > before
}

func (p *planner) nextAttempt(name string, latest *podruntime.Container) uint32 {
	if latest == nil {
		return p.o.LoggedAttempts[name]
	}
	return latest.Attempt + 1
}

func startReason(name string, latest *podruntime.Container) string {
	if latest == nil {
		return fmt.Sprintf("container %s has not run yet", name)
	}
	return fmt.Sprintf("container %s ended with code %d", name, latest.ExitCode)
}

// crashed says whether the container still waits to be restarted.
func (p *planner) crashed(spec *v1.Container, latest *podruntime.Container) bool {
	backoff := p.o.Restarts[spec.Name]
	until := backoff.until(endOf(p.o.Ends, latest))
	if !p.now.Before(until) {
		return false
	}
	pod := podspec.Desc(p.o.Pod)
	p.waiting[spec.Name] = status.Waiting{Reason: status.ReasonCrashLoop, Message: crashMessage(backoff.Delay, spec.Name, pod)}
	p.note(Notice{Key: "crash/" + latest.ID, Container: spec.Name, Type: v1.EventTypeWarning, Reason: "BackOff",
		Message: fmt.Sprintf("Back-off restarting failed container %s in pod %s", spec.Name, pod)})
	p.lookAgain(until)
	return true
}

// showFailure makes the container's waiting state say why the last try failed,
// until one succeeds.
func (p *planner) showFailure(name string) {
	if f, ok := p.o.Failures[startLane(name)]; ok && f.Reason != "" {
		p.waiting[name] = status.Waiting{Reason: f.Reason, Message: f.Message}
	}
	f, ok := p.o.Failures[imageLane(name)]
	if !ok {
		return
	}
	p.waiting[name] = status.Waiting{Reason: f.Reason, Message: f.Message}
	waits := f.Reason != image.ReasonInvalidName && f.Reason != image.ReasonNeverPull && f.Reason != image.ReasonInspect
	if !waits {
		return
	}
	shows := f.At.Add(pullErrorShown)
	if p.now.Before(shows) {
		p.lookAgain(shows)
		return
	}
	msg := fmt.Sprintf("Back-off pulling image %q", f.Image)
	p.waiting[name] = status.Waiting{Reason: image.ReasonBackOff, Message: fmt.Sprintf("%s: %s: %s", msg, f.Reason, f.Message)}
	key := fmt.Sprintf("pull/%s/%d", name, f.Count)
	p.note(Notice{Key: key, Container: name, Type: v1.EventTypeNormal, Reason: "BackOff", Message: msg})
	p.note(Notice{Key: key + "/error", Container: name, Type: v1.EventTypeWarning, Reason: "Failed", Message: "Error: " + image.ReasonBackOff})
}

// collect removes what nobody needs any more: of each container all but the
// newest instance and the one before it, and sandboxes without containers.
func (p *planner) collect() {
	kept := map[string]bool{}
	seen := map[string]int{}
	for _, c := range p.o.Runtime.Containers {
		seen[c.Name]++
		if seen[c.Name] > 2 && c.Phase == podruntime.Exited {
			p.add(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID, Attempt: c.Attempt, Why: "newer instances exist"})
			continue
		}
		kept[c.SandboxID] = true
	}
	for i, s := range p.o.Runtime.Sandboxes {
		if i > 0 && !s.Ready && !kept[s.ID] {
			p.add(Action{Kind: RemoveSandbox, ID: s.ID, Why: "it was replaced and holds no container"})
		}
	}
}

package agent

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/agent/podspec"
	"mend/internal/agent/probe"
)

// sync works on one Pod: observe, plan, apply.
func (a *Agent) sync(ctx context.Context, key string) (time.Time, error) {
	p := a.get(types.UID(key))
	if p == nil {
		return time.Time{}, nil
	}
	o, err := a.observe(ctx, p)
	if err != nil || o == nil {
		return time.Time{}, err
	}
	todo := plan(*o, a.cfg.Clock.Now())
	a.apply(p, *o, todo)
	return todo.Recheck, nil
}

// observe reads the runtime if it may have changed. nil: there is nothing to do.
func (a *Agent) observe(ctx context.Context, p *pod) (*Observed, error) {
	p.mu.Lock()
	flights := p.flightsNow()
	dirty := p.dirty
	p.dirty = false
	p.mu.Unlock()
	if dirty {
		ctx, cancel := context.WithTimeout(ctx, observeTimeout)
		defer cancel()
		state, err := a.reader.Pod(ctx, p.uid)
		p.mu.Lock()
		if err != nil {
			p.dirty = true
			p.mu.Unlock()
			return nil, err
		}
		p.state = state
		p.noteContainers(a.cfg.Clock.Now())
		p.mu.Unlock()
	}
	a.mu.Lock()
	halt := a.halt
	a.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.api == nil || p.forgot {
		return nil, nil
	}
	o := p.observed(flights, a.cfg.NodeIPs, halt, a.loggedAttempts(p), a.cfg.Clock.Now())
	o.RuntimeName, o.Gated = a.runtimeName, a.cfg.Gate != nil
	return &o, nil
}

var logName = regexp.MustCompile(`^(\d+)\.log(\..*)?$`)

// loggedAttempts continues restart counts where the runtime has lost a container
// whose logs are there, so that a log is never written over. Callers hold p.mu.
func (a *Agent) loggedAttempts(p *pod) map[string]uint32 {
	var attempts map[string]uint32
	dir := a.host.PodLogDir(p.api.Namespace, p.api.Name, p.uid)
	for c := range eachContainer(&p.api.Spec) {
		if p.state.Latest(c.Name) != nil {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(dir, c.Name))
		if err != nil {
			continue // none was written
		}
		for _, e := range entries {
			m := logName.FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			if n, err := strconv.ParseUint(m[1], 10, 32); err == nil {
				if attempts == nil {
					attempts = map[string]uint32{}
				}
				attempts[c.Name] = max(attempts[c.Name], uint32(n)+1)
			}
		}
	}
	return attempts
}

// apply carries a plan out: probes, status, notices, actions. Actions run beside
// the worker; each wakes it when it lands.
func (a *Agent) apply(p *pod, o Observed, todo Plan) {
	a.applyProbes(o, todo)
	p.mu.Lock()
	if todo.Ending && p.endingSince.IsZero() {
		p.endingSince = a.cfg.Clock.Now()
	}
	if !todo.Ending && !p.gone && p.api.DeletionTimestamp == nil {
		p.endingSince = time.Time{}
	}
	p.mu.Unlock()
	if !o.Gone && !o.Halt {
		a.setStatus(p, todo.Status)
	}
	a.tell(p, o.Pod, todo.Notices)
	for _, act := range todo.Actions {
		a.launch(p, act)
	}
}

// applyProbes makes the probes of exactly those containers run that the plan
// names.
func (a *Agent) applyProbes(o Observed, todo Plan) {
	if len(todo.Probe) == 0 {
		a.probes.RemovePod(o.Pod.UID)
		return
	}
	wanted := map[string]bool{}
	for _, c := range todo.Probe {
		wanted[c.Name] = true
		spec := findContainer(&o.Pod.Spec, c.Name)
		if spec == nil {
			continue
		}
		target := probe.Target{Pod: o.Pod, Container: spec, ContainerID: c.ID, StartedAt: c.StartedAt,
			Started: spec.StartupProbe != nil && o.health()[c.ID].Started}
		if ips := podIPs(o); len(ips) > 0 {
			target.PodIP = ips[0]
		}
		if len(o.HostIPs) > 0 {
			target.HostIP = o.HostIPs[0]
		}
		a.probes.Ensure(target)
	}
	for spec := range eachContainer(&o.Pod.Spec) {
		if !wanted[spec.Name] {
			a.probes.Remove(o.Pod.UID, spec.Name)
		}
	}
}

// podIPs are the Pod's addresses as its containers see them.
func podIPs(o Observed) []string {
	if o.Pod.Spec.HostNetwork {
		return o.HostIPs
	}
	return o.Runtime.IPs()
}

// probeChanged takes a settled result.
func (a *Agent) probeChanged(seen probe.Observation) {
	p := a.get(seen.PodUID)
	if p == nil {
		return
	}
	p.mu.Lock()
	results := p.probed[seen.ContainerID]
	switch seen.Kind {
	case probe.Startup:
		results.Startup = resultOf(seen.Result)
	case probe.Liveness:
		results.Liveness = resultOf(seen.Result)
	case probe.Readiness:
		results.Readiness = resultOf(seen.Result)
	}
	p.probed[seen.ContainerID] = results
	p.mu.Unlock()
	a.loop.Add(string(p.uid))
}

func resultOf(r probe.Result) Result {
	switch r {
	case probe.Success:
		return ResultSuccess
	case probe.Failure:
		return ResultFailure
	case probe.Unknown:
	}
	return ResultUnknown
}

// probeFailed writes the event of one attempt.
func (a *Agent) probeFailed(seen probe.Observation) {
	p := a.get(seen.PodUID)
	if p == nil {
		return
	}
	p.mu.Lock()
	pod := p.api
	p.mu.Unlock()
	if pod != nil {
		a.cfg.Events.Event(containerRef(pod, seen.Container), v1.EventTypeWarning, seen.Reason, seen.Message)
	}
}

// tell writes each notice once, for as long as its state lasts.
func (a *Agent) tell(p *pod, pod *v1.Pod, notices []Notice) {
	now := make(map[string]bool, len(notices))
	for _, n := range notices {
		now[n.Key] = true
	}
	p.mu.Lock()
	before := p.told
	p.told = now
	p.mu.Unlock()
	for _, n := range notices {
		if !before[n.Key] {
			a.cfg.Events.Event(containerRef(pod, n.Container), n.Type, n.Reason, n.Message)
		}
	}
}

// containerRef is what an event is about: a container of the Pod, or the Pod
// where name is empty.
func containerRef(pod *v1.Pod, name string) *v1.ObjectReference {
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name,
		UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	if name != "" {
		ref.FieldPath = podspec.FieldPath(pod, name)
	}
	return ref
}

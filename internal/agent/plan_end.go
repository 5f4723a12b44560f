package agent

import (
	"time"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/status"
)

// end brings the Pod to rest: out of the endpoints, then containers, then
// sandboxes; then its final status is written; only then is anything taken away
// that the status came from, and last of all the API object.
func (p *planner) end() {
	p.abandon(SetUpVolumes)
	if p.leaving() || p.killAll() || p.stopSandboxes() {
		p.endProbes()
		return
	}
	p.ended = true
	p.plan.Status = p.status()
	if !p.o.Gone && !p.settled() {
		return
	}
	if !p.o.TornDown {
		p.add(Action{Kind: TearDown, Why: "the Pod has ended"})
	}
	if !p.o.Gone && p.o.Pod.DeletionTimestamp == nil {
		p.collect()
		return
	}
	left := p.removeAll()
	switch {
	case left || !p.o.TornDown:
	case p.o.Gone:
		p.add(Action{Kind: Forget, Why: "the Pod is gone"})
	default:
		p.add(Action{Kind: DeletePod, Why: "nothing of the Pod is left on the node"})
	}
}

// leaving says whether requests may still reach the Pod, so that its containers must
// serve on. That is waited for in at most three quarters of the grace period.
func (p *planner) leaving() bool {
	if !p.gated() || !p.o.LeftAt.IsZero() || len(p.o.Runtime.Live()) == 0 {
		return false
	}
	p.plan.Ending = true
	until := p.endingSince().Add(p.leaveLimit())
	if !p.now.Before(until) {
		p.abandon(LeaveEndpoints)
		return false
	}
	p.abandon(EnsureImage)
	p.add(Action{Kind: LeaveEndpoints, Why: "the Pod is deleted"})
	p.lookAgain(until)
	return true
}

// gated says whether the Pod leaves its endpoints before it ends.
func (p *planner) gated() bool {
	return p.o.Gated && !p.o.Gone && p.o.Pod.DeletionTimestamp != nil
}

func (p *planner) leaveLimit() time.Duration {
	return time.Duration(p.grace()) * time.Second * 3 / 4
}

// leftAfter is how much of the grace period, in seconds, had passed when the
// containers were first told to end.
func (p *planner) leftAfter() int64 {
	switch {
	case !p.gated():
		return 0
	case !p.o.LeftAt.IsZero():
		return int64(min(p.o.LeftAt.Sub(p.endingSince()), p.leaveLimit()).Round(time.Second) / time.Second)
	case p.now.Before(p.endingSince().Add(p.leaveLimit())):
		return 0 // nothing ran
	}
	return int64(p.leaveLimit() / time.Second)
}

// settled says whether the API shows the final status.
func (p *planner) settled() bool {
	have := p.o.Pod.Status
	return status.Equal(status.Merge(p.o.Pod, have, p.plan.Status), have)
}

// removeAll removes every sandbox, and with it its containers; it says whether
// the runtime still holds anything.
func (p *planner) removeAll() bool {
	boxes := map[string]bool{}
	for _, s := range p.o.Runtime.Sandboxes {
		boxes[s.ID] = true
		p.add(Action{Kind: RemoveSandbox, ID: s.ID, Why: "the Pod is deleted"})
	}
	for _, c := range p.o.Runtime.Containers {
		if !boxes[c.SandboxID] {
			p.add(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID, Attempt: c.Attempt, Why: "the Pod is deleted"})
		}
	}
	return !p.o.Runtime.Empty()
}

// endProbes keeps readiness probes running while containers end: a Pod that
// drains says so. What the other probes find is no longer acted on.
func (p *planner) endProbes() {
	for _, c := range p.o.Runtime.Containers {
		if spec := findContainer(&p.o.Pod.Spec, c.Name); spec != nil && spec.ReadinessProbe != nil && c.Phase == podruntime.Running {
			p.plan.Probe = append(p.plan.Probe, c)
		}
	}
}

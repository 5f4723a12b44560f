package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	v1 "k8s.io/api/core/v1"

	"mend/internal/agent/image"
	"mend/internal/agent/podruntime"
)

// stepError is why an action failed, in the form its container's waiting state
// shows.
type stepError struct {
	reason, message string
	image           string // for pulls
}

func (e *stepError) Error() string { return e.reason + ": " + e.message }

// launch starts an action beside the worker, in its lane.
func (a *Agent) launch(p *pod, act Action) {
	if act.Kind == Abandon {
		p.mu.Lock()
		if f := p.flights[act.ID]; f != nil {
			f.cancel()
		}
		p.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(a.actions)
	own := &flight{Flight: Flight{Action: act, Since: a.cfg.Clock.Now()}, ctx: ctx, cancel: cancel}
	p.mu.Lock()
	if taken := p.flights[act.lane()]; taken != nil {
		if !act.Again {
			p.mu.Unlock()
			cancel()
			return
		}
		taken.cancel()
	}
	p.flights[act.lane()] = own
	pod := p.api
	p.mu.Unlock()
	a.cfg.Log.Debug("action", "pod", pod.Namespace+"/"+pod.Name, "do", string(act.Kind), "container", act.Container, "why", act.Why)
	a.flying.Go(func() {
		err := a.fenced(ctx, p, act)
		a.land(p, own, err)
		cancel()
	})
}

// fenced turns a panic in an action into its failure.
func (a *Agent) fenced(ctx context.Context, p *pod, act Action) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			a.cfg.Log.Error("panic in an action", "do", string(act.Kind), "uid", p.uid, "panic", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return a.do(ctx, p, act)
}

func (a *Agent) do(ctx context.Context, p *pod, act Action) error {
	switch act.Kind {
	case SetUpVolumes:
		return a.setUpVolumes(ctx, p)
	case RunSandbox:
		defer a.starts.begin()()
		return a.runSandbox(ctx, p, act)
	case EnsureImage:
		return a.ensureImage(ctx, p, act)
	case StartContainer:
		return a.startContainer(ctx, p, act) // counts itself, without its hook
	case LeaveEndpoints:
		return a.leaveEndpoints(ctx, p)
	case KillContainer:
		return a.killContainer(ctx, p, act)
	case StopSandbox:
		a.starts.yield(ctx)
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		return ignoreGone(a.cfg.Runtime.StopPodSandbox(ctx, act.ID))
	case RemoveContainer:
		return a.removeContainer(ctx, p, act)
	case RemoveSandbox:
		a.starts.yield(ctx)
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		return ignoreGone(a.cfg.Runtime.RemovePodSandbox(ctx, act.ID))
	case TearDown:
		return a.tearDown(p)
	case DeletePod:
		return a.deletePod(ctx, p)
	case Forget:
		return a.forgetPod(p)
	case Abandon:
	}
	return nil
}

// deleteAgain is the wait before the API is asked again to delete a Pod.
const deleteAgain = 10 * time.Second

// land notes how an action went and wakes the worker.
func (a *Agent) land(p *pod, own *flight, err error) {
	act, lane, now := own.Action, own.Action.lane(), a.cfg.Clock.Now()
	p.mu.Lock()
	own.abandoned = own.ctx.Err() != nil && a.actions.Err() == nil
	if p.flights[lane] == own {
		delete(p.flights, lane)
	}
	p.dirty = true
	switch {
	case err == nil && act.Kind == DeletePod && !p.gone:
		// The watch tells when it is gone; a finalizer may hold it.
		p.failures[lane] = Failure{Message: "deletion was asked for", At: now, RetryAt: now.Add(deleteAgain)}
	case err == nil && act.shows() && p.done[lane] == act:
		// It succeeded twice, so the first time had no effect: not in a tight loop.
		err = errors.New("it had no effect")
		p.fail(lane, err, now)
	case err == nil:
		delete(p.failures, lane)
		p.done[lane] = act
	case own.abandoned:
		// Not wanted any more, or replaced by another kill: not a failure.
	default:
		p.fail(lane, err, now)
	}
	failed := p.failures[lane]
	pod := p.api
	p.mu.Unlock()
	if err != nil && own.ctx.Err() == nil {
		a.cfg.Log.Info("action failed", "pod", pod.Namespace+"/"+pod.Name, "do", string(act.Kind), "container", act.Container,
			"err", err, "again", failed.RetryAt.Format(time.TimeOnly))
	}
	a.loop.Add(string(p.uid))
}

// fail remembers a failure and when to try again. Callers hold p.mu.
func (p *pod) fail(lane string, err error, now time.Time) {
	f := Failure{Count: p.failures[lane].Count + 1, At: now, Message: err.Error()}
	f.RetryAt = now.Add(retryDelay(f.Count))
	var step *stepError
	if errors.As(err, &step) {
		f.Reason, f.Message, f.Image = step.reason, step.message, step.image
		if pulls(step.reason) {
			p.pulls[step.image] = p.pulls[step.image].raised(now, now)
			f.RetryAt = now.Add(p.pulls[step.image].Delay)
		}
	}
	p.failures[lane] = f
}

// pulls says whether a reason is that of a pull that was tried, which backs off
// as pulls do.
func pulls(reason string) bool {
	switch reason {
	case image.ReasonPull, "RegistryUnavailable", "SignatureValidationFailed":
		return true
	}
	return false
}

func ignoreGone(err error) error {
	if podruntime.IsNotFound(err) {
		return nil
	}
	return err
}

// view is what an action needs to know of its Pod.
type view struct {
	pod     *v1.Pod
	state   podruntime.State
	ips     []string
	sandbox *podruntime.Sandbox
}

func (a *Agent) viewOf(p *pod) view {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := view{pod: p.api, state: p.state, sandbox: p.state.ActiveSandbox()}
	v.ips = v.state.IPs()
	if v.pod.Spec.HostNetwork {
		v.ips = a.cfg.NodeIPs
	}
	return v
}

// event writes an event about a container, or about the Pod where name is empty.
// Identifiers of instances are replaced by the name, so that events of one kind
// count as one.
func (a *Agent) event(pod *v1.Pod, name, id, kind, reason, message string) {
	if id != "" {
		message = replaceID(message, id, name)
	}
	a.cfg.Events.Event(containerRef(pod, name), kind, reason, message)
}

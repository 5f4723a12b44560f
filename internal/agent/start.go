package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
	"mend/internal/agent/volume"
)

// Reasons a container waits although its image is there.
const (
	reasonConfig    = "CreateContainerConfigError"
	reasonCreate    = "CreateContainerError"
	reasonRun       = "RunContainerError"
	reasonPostStart = "PostStartHookError"
)

// startContainer creates and starts one instance and runs its postStart hook.
func (a *Agent) startContainer(ctx context.Context, p *pod, act Action) error {
	v := a.viewOf(p)
	c := findContainer(&v.pod.Spec, act.Container)
	if c == nil || v.sandbox == nil || v.sandbox.ID != act.ID {
		return errors.New("the container or its sandbox is gone")
	}
	p.mu.Lock()
	img := p.images[c.Name]
	// The next instance looks for its image anew.
	delete(p.images, c.Name)
	if last := v.state.Latest(c.Name); last != nil && last.Phase == podruntime.Exited {
		p.restarts[c.Name] = p.restarts[c.Name].raised(endOf(p.endSeen, last), a.cfg.Clock.Now())
	}
	p.mu.Unlock()
	end := sync.OnceFunc(a.starts.begin())
	defer end()
	id, err := a.create(ctx, v, c, act, img)
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := a.cfg.Runtime.StartContainer(starting, id); err != nil {
		a.event(v.pod, c.Name, id, v1.EventTypeWarning, "Failed", "Error: "+message(err))
		return &stepError{reason: reasonRun, message: message(err)}
	}
	end()
	a.event(v.pod, c.Name, id, v1.EventTypeNormal, "Started", "Container started")
	p.mu.Lock()
	delete(p.failures, imageLane(c.Name))
	p.mu.Unlock()
	return a.postStart(ctx, v, c, id)
}

func (a *Agent) create(ctx context.Context, v view, c *v1.Container, act Action, img podspec.Image) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	config, sandbox, err := a.configure(ctx, v, c, act, img)
	if err != nil {
		a.event(v.pod, c.Name, "", v1.EventTypeWarning, "Failed", "Error: "+message(err))
		return "", &stepError{reason: reasonConfig, message: message(err)}
	}
	id, err := a.cfg.Runtime.CreateContainer(ctx, v.sandbox.ID, config, sandbox)
	if err != nil {
		a.puller.Forget(c.Image) // it may have been removed
		a.event(v.pod, c.Name, id, v1.EventTypeWarning, "Failed", "Error: "+message(err))
		return "", &stepError{reason: reasonCreate, message: message(err)}
	}
	a.event(v.pod, c.Name, id, v1.EventTypeNormal, "Created", "Container created")
	return id, nil
}

func (a *Agent) configure(ctx context.Context, v view, c *v1.Container, act Action, img podspec.Image) (*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig, error) {
	sandbox, _, err := a.host.Sandbox(v.pod, v.sandbox.Attempt)
	if err != nil {
		return nil, nil, err
	}
	target, err := targetOf(v, c.Name)
	if err != nil {
		return nil, nil, err
	}
	env, err := a.host.Env(ctx, v.pod, c, v.ips, a.sources)
	if err != nil {
		return nil, nil, err
	}
	mounts, err := a.volumes.Mounts(ctx, v.pod, c, v.ips, env)
	if err != nil {
		return nil, nil, err
	}
	config, err := a.host.Container(podspec.ContainerInput{Pod: v.pod, Container: c, Attempt: act.Attempt,
		Image: img, Env: env, Mounts: mounts, TargetID: target})
	if err != nil {
		return nil, nil, err
	}
	if a.cfg.Simulated {
		return config, sandbox, nil // the runtime makes the directory of the log
	}
	logs := filepath.Dir(a.host.ContainerLog(v.pod, c.Name, act.Attempt))
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, nil, fmt.Errorf("create container log directory for container %s failed: %w", c.Name, err)
	}
	return config, sandbox, nil
}

// targetOf finds the container whose processes an ephemeral container joins.
func targetOf(v view, name string) (string, error) {
	for i := range v.pod.Spec.EphemeralContainers {
		e := &v.pod.Spec.EphemeralContainers[i]
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		target := v.state.Latest(e.TargetContainerName)
		if target == nil {
			return "", fmt.Errorf("unable to find target container %v", e.TargetContainerName)
		}
		return target.ID, nil
	}
	return "", nil
}

// postStart runs the hook; a container whose hook fails is ended.
func (a *Agent) postStart(ctx context.Context, v view, c *v1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	text, err := a.runHook(ctx, v, c, id, c.Lifecycle.PostStart)
	if err == nil {
		return nil
	}
	// The text stays out of the event: it may hold what a server answered.
	a.event(v.pod, c.Name, id, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	grace := int64(minGrace)
	if g := v.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = max(grace, *g)
	}
	if err := a.stop(ctx, v.pod, c, id, grace, "FailedPostStartHook"); err != nil {
		a.cfg.Log.Warn("cannot end a container whose postStart hook failed", "pod", v.pod.Name, "container", c.Name, "err", err)
	}
	return &stepError{reason: reasonPostStart, message: text}
}

// killContainer runs the preStop hook and stops the container.
func (a *Agent) killContainer(ctx context.Context, p *pod, act Action) error {
	v := a.viewOf(p)
	c := findContainer(&v.pod.Spec, act.Container)
	grace := act.Grace
	if c == nil {
		c = &v1.Container{Name: act.Container}
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && grace > 0 && !act.Again {
		a.event(v.pod, c.Name, act.ID, v1.EventTypeNormal, "Killing", act.Why)
		grace -= int64(a.preStop(ctx, v, c, act.ID, grace) / time.Second)
		return a.stopSilently(ctx, act.ID, grace)
	}
	if act.Again {
		return a.stopSilently(ctx, act.ID, grace)
	}
	err := a.stop(ctx, v.pod, c, act.ID, grace, act.Why)
	if err != nil && ctx.Err() == nil {
		a.event(v.pod, "", act.ID, v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+killFailure(c.Name, err))
	}
	return err
}

// killFailure says why a container did not end. A runtime that waits for it in vain says
// only that it took too long.
func killFailure(container string, err error) string {
	if grpcstatus.Code(err) != codes.DeadlineExceeded {
		return err.Error()
	}
	return fmt.Sprintf("container %s was killed and has not ended: its processes wait in the kernel, as while a file system or device that they use hangs, or the runtime does not answer (%v)", container, err)
}

// preStop runs the hook for at most the grace period (seconds) and says how long
// it took.
func (a *Agent) preStop(ctx context.Context, v view, c *v1.Container, id string, grace int64) time.Duration {
	began := a.cfg.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second)
	defer cancel()
	if _, err := a.runHook(ctx, v, c, id, c.Lifecycle.PreStop); err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		a.event(v.pod, c.Name, id, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
	return a.cfg.Clock.Since(began)
}

func (a *Agent) stop(ctx context.Context, pod *v1.Pod, c *v1.Container, id string, grace int64, why string) error {
	if pod.Name != "" {
		a.event(pod, c.Name, id, v1.EventTypeNormal, "Killing", why)
	}
	return a.stopSilently(ctx, id, grace)
}

// stopSilently sends the stop signal, and kills after grace seconds.
func (a *Agent) stopSilently(ctx context.Context, id string, grace int64) error {
	grace = max(grace, minGrace)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second+stopSlack)
	defer cancel()
	return ignoreGone(a.cfg.Runtime.StopContainer(ctx, id, grace))
}

var _ volume.Tokens = (*sources)(nil)

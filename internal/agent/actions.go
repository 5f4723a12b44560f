package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/agent/image"
	"mend/internal/agent/logs"
	"mend/internal/agent/podspec"
	"mend/internal/runtime/cleanup"
)

func (a *Agent) setUpVolumes(flight context.Context, p *pod) error {
	ctx, cancel := context.WithTimeout(flight, startTimeout)
	defer cancel()
	v := a.viewOf(p)
	if failures := a.volumes.SetUp(ctx, v.pod); len(failures) > 0 {
		if flight.Err() != nil {
			return flight.Err() // nobody wants them any more
		}
		var all []error
		for _, f := range failures {
			a.event(v.pod, "", "", v1.EventTypeWarning, "FailedMount", f.Error())
			all = append(all, f)
		}
		return errors.Join(all...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.volumesReady, p.tornDown = true, false
	return nil
}

func (a *Agent) runSandbox(ctx context.Context, p *pod, act Action) error {
	ctx, cancel := context.WithTimeout(ctx, sandboxTimeout)
	defer cancel()
	v := a.viewOf(p)
	fail := func(err error) error {
		if v.pod.DeletionTimestamp == nil && a.actions.Err() == nil {
			a.event(v.pod, "", "", v1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", err))
		}
		return err
	}
	if err := a.ensureCgroup(v.pod); err != nil {
		a.event(v.pod, "", "", v1.EventTypeWarning, "FailedCreatePodContainer", fmt.Sprintf("unable to ensure pod container exists: %v", err))
		return err
	}
	config, warnings, err := a.host.Sandbox(v.pod, act.Attempt)
	if err != nil {
		return fail(err)
	}
	for _, w := range warnings {
		a.event(v.pod, "", "", v1.EventTypeWarning, w.Reason, w.Message)
	}
	// The simulated runtime makes the directories of logs when it writes one.
	if !a.cfg.Simulated {
		if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
			return fail(err)
		}
	}
	if err := a.releaseSandboxes(ctx, v); err != nil {
		return fail(err)
	}
	if _, err := a.cfg.Runtime.RunPodSandbox(ctx, config, ""); err != nil {
		return fail(err)
	}
	return nil
}

// releaseSandboxes has sandboxes that ended by themselves, as all do when the machine
// ends, give their addresses back: the runtime keeps those until it is told to stop.
func (a *Agent) releaseSandboxes(ctx context.Context, v view) error {
	for _, s := range v.state.Sandboxes {
		if s.Ready {
			continue
		}
		if err := ignoreGone(a.cfg.Runtime.StopPodSandbox(ctx, s.ID)); err != nil {
			return fmt.Errorf("stop the sandbox before: %w", err)
		}
	}
	return nil
}

// ensureCgroup gives the Pod its cgroup, and its tier the weight of what is in
// it.
func (a *Agent) ensureCgroup(pod *v1.Pod) error {
	if a.cgroups == nil {
		return nil
	}
	if err := a.weighTier(pod); err != nil {
		return err
	}
	return a.cgroups.Ensure(a.host.PodCgroup(pod), podspec.CgroupLimits(pod))
}

func (a *Agent) ensureImage(ctx context.Context, p *pod, act Action) error {
	v := a.viewOf(p)
	c := findContainer(&v.pod.Spec, act.Container)
	if c == nil || v.sandbox == nil {
		return errors.New("the container or its sandbox is gone")
	}
	sandbox, _, err := a.host.Sandbox(v.pod, v.sandbox.Attempt)
	if err != nil {
		return err
	}
	secrets, missing := a.pullSecrets(ctx, v.pod)
	out, err := a.puller.Ensure(ctx, image.Request{
		Image: c.Image, Policy: c.ImagePullPolicy, Secrets: secrets, Sandbox: sandbox, Notes: v.pod.Annotations, PullTime: pullTimeout,
		OnPull: func() {
			a.event(v.pod, c.Name, "", v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
		},
	})
	var why *image.Error
	switch {
	case errors.As(err, &why):
		a.tellPullFailure(v.pod, c, why, missing)
		return &stepError{reason: why.Reason, message: why.Message, image: c.Image}
	case err != nil:
		return err
	}
	a.event(v.pod, c.Name, "", v1.EventTypeNormal, "Pulled", pulledMessage(c.Image, out))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.images[c.Name] = out.Image
	if out.Pulled {
		a.node.ImagesChanged()
	}
	return nil
}

func pulledMessage(name string, out image.Outcome) string {
	if !out.Pulled {
		return fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", name)
	}
	return fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		name, out.Took.Truncate(time.Millisecond), out.Total.Truncate(time.Millisecond), out.Size)
}

func (a *Agent) tellPullFailure(pod *v1.Pod, c *v1.Container, why *image.Error, missing []string) {
	reason := "Failed"
	switch why.Reason {
	case image.ReasonNeverPull:
		reason = image.ReasonNeverPull
	case image.ReasonInvalidName, image.ReasonInspect:
		reason = "InspectFailed"
	}
	a.event(pod, c.Name, "", v1.EventTypeWarning, reason, why.Event)
	a.event(pod, c.Name, "", v1.EventTypeWarning, "Failed", "Error: "+why.Reason)
	if len(missing) > 0 && why.Reason == image.ReasonPull {
		a.event(pod, "", "", v1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf(
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
}

func (a *Agent) pullSecrets(ctx context.Context, pod *v1.Pod) (found []*v1.Secret, missing []string) {
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := a.sources.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		found = append(found, secret)
	}
	return found, missing
}

// removeContainer removes an instance, and the log of one that ran long ago.
func (a *Agent) removeContainer(ctx context.Context, p *pod, act Action) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	v := a.viewOf(p)
	if err := ignoreGone(a.cfg.Runtime.RemoveContainer(ctx, act.ID)); err != nil {
		return err
	}
	a.reader.ForgetContainer(act.ID)
	log := a.host.ContainerLog(v.pod, act.Container, act.Attempt)
	for _, c := range v.state.Instances(act.Container) {
		if c.ID != act.ID && c.Attempt == act.Attempt {
			return nil // another instance wrote the same log
		}
	}
	return logs.Remove(log)
}

func (a *Agent) tearDown(p *pod) error {
	v := a.viewOf(p)
	if err := a.volumes.TearDown(p.uid); err != nil {
		return err
	}
	if a.cgroups != nil {
		// The tier of an orphan is not known: look in all of them.
		for _, tier := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
			if err := a.removeCgroup(filepath.Join(a.host.TierCgroup(tier), "pod"+string(p.uid))); err != nil {
				return err
			}
		}
	}
	p.mu.Lock()
	p.tornDown, p.volumesReady = true, false
	p.mu.Unlock()
	a.cfg.Log.Debug("tore down", "pod", v.pod.Namespace+"/"+v.pod.Name)
	return nil
}

// deletePod takes the object out of the API, now that nothing of it is left.
func (a *Agent) deletePod(ctx context.Context, p *pod) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	v := a.viewOf(p)
	err := a.cfg.Client.CoreV1().Pods(v.pod.Namespace).Delete(ctx, v.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      metav1.NewUIDPreconditions(string(v.pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		return nil
	}
	return err
}

func (a *Agent) forgetPod(p *pod) error {
	v := a.viewOf(p)
	if err := os.RemoveAll(a.host.PodLogDir(v.pod.Namespace, v.pod.Name, p.uid)); err != nil {
		return err
	}
	a.forget(p)
	return nil
}

// message is the text of a CRI error without the "rpc error" around it.
func message(err error) string { return grpcstatus.Convert(err).Message() }

func replaceID(text, id, name string) string { return strings.ReplaceAll(text, id, name) }

// sweepLogs removes logs of Pods that neither the API nor the runtime has.
func (a *Agent) sweepLogs() {
	entries, err := os.ReadDir(a.cfg.LogDir)
	if err != nil {
		a.cfg.Log.Warn("cannot list the logs of Pods", "err", err)
		return
	}
	known := map[string]bool{}
	for _, p := range a.snapshot() {
		known[string(p.uid)] = true
	}
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_")
		if !e.IsDir() || len(parts) != 3 || known[parts[2]] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(a.cfg.LogDir, e.Name())); err != nil {
			a.cfg.Log.Warn("cannot remove the logs of a Pod that no longer exists", "dir", e.Name(), "err", err)
		}
	}
}

// minOOMScore is the lowest oom_score_adj that this process may give to another:
// without CAP_SYS_RESOURCE not less than its own.
func minOOMScore() int64 {
	const capSysResource = 24
	caps := procStatus("CapEff:")
	if bits, err := strconv.ParseUint(caps, 16, 64); err == nil && bits&(1<<capSysResource) != 0 {
		return -1000
	}
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}
	score, err := strconv.ParseInt(strings.TrimSpace(string(own)), 10, 64)
	if err != nil {
		return 0
	}
	return score
}

func procStatus(field string) string {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if value, ok := strings.CutPrefix(line, field); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// strayLimit bounds the end of processes that the runtime does not know.
const strayLimit = 10 * time.Second

// removeCgroup removes a Pod's cgroup. Its containers have ended, so a process
// that is still in it is one that the runtime has lost: a kill came between its
// start and the note of it. kubelet kills such processes too.
func (a *Agent) removeCgroup(path string) error {
	ctx, cancel := context.WithTimeout(a.actions, strayLimit)
	defer cancel()
	if err := cleanup.KillCgroup(ctx, path); err != nil {
		return err
	}
	return a.cgroups.Remove(path)
}

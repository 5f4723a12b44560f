package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
	"mend/internal/agent/status"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func after(d time.Duration) time.Time { return epoch.Add(d) }

// want is a plan as a test writes it: the status in short.
type want struct {
	Actions []Action
	Notices []Notice
	Probe   []string
	Recheck time.Time
	Phase   v1.PodPhase
	States  string // of each container in order: "running", "waiting Reason", "ended 1 Error"
	Ready   bool
}

func inShort(p Plan) want {
	w := want{Actions: p.Actions, Notices: p.Notices, Recheck: p.Recheck, Phase: p.Status.Phase}
	for _, c := range p.Probe {
		w.Probe = append(w.Probe, c.Name)
	}
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			if w.States != "" {
				w.States += ", "
			}
			w.States += stateText(c.State)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			w.Ready = c.Status == v1.ConditionTrue
		}
	}
	return w
}

func stateText(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("ended %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	}
	return "waiting " + s.Waiting.Reason
}

// spec makes a Pod with one container, web.
func spec(change ...func(*v1.Pod)) *v1.Pod {
	grace, links := int64(30), true
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "d", UID: "u", Generation: 1},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, EnableServiceLinks: &links,
			Containers: []v1.Container{{Name: "web", Image: "img:1"}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// fresh is a Pod that has just come to the node.
func fresh(change ...func(*v1.Pod)) Observed {
	pod := spec(change...)
	return Observed{Pod: pod, Old: pod.Status, HostIPs: []string{"192.0.2.1"}, RuntimeName: "containerd",
		Images: map[string]podspec.Image{}, Failures: map[string]Failure{}, Restarts: map[string]Backoff{},
		Flights: map[string]Flight{}, Probes: map[string]Probed{}}
}

// up is a Pod all of whose containers run.
func up(change ...func(*v1.Pod)) Observed {
	o := fresh(change...)
	o.VolumesReady = true
	o.Runtime.Sandboxes = []podruntime.Sandbox{box("s0", 0)}
	for c := range eachContainer(&o.Pod.Spec) {
		add(&o, running(c.Name, c.Name+"0", "s0"))
	}
	o.Old = plan(o, epoch).Status
	return o
}

func box(id string, attempt uint32) podruntime.Sandbox {
	return podruntime.Sandbox{ID: id, Attempt: attempt, Ready: true, IPs: []string{"10.0.0.7"}, CreatedAt: epoch.Add(-time.Minute)}
}

func running(name, id, box string) podruntime.Container {
	return podruntime.Container{ID: id, Name: name, SandboxID: box, Phase: podruntime.Running,
		CreatedAt: epoch.Add(-30 * time.Second), StartedAt: epoch.Add(-30 * time.Second)}
}

func exited(c podruntime.Container, code int32, ago time.Duration) podruntime.Container {
	c.Phase, c.ExitCode, c.FinishedAt, c.Reason = podruntime.Exited, code, epoch.Add(-ago), "Error"
	if code == 0 {
		c.Reason = "Completed"
	}
	return c
}

// add puts a container in front of the others: it is the newest.
func add(o *Observed, c podruntime.Container) {
	o.Runtime.Containers = append([]podruntime.Container{c}, o.Runtime.Containers...)
}

func set(o *Observed, c podruntime.Container) {
	for i := range o.Runtime.Containers {
		if o.Runtime.Containers[i].ID == c.ID {
			o.Runtime.Containers[i] = c
		}
	}
}

func fly(o *Observed, since time.Time, a Action) {
	o.Flights[a.lane()] = Flight{Action: a, Since: since}
}

func deleted(grace int64) func(*v1.Pod) {
	return func(p *v1.Pod) {
		at := metav1.NewTime(epoch.Add(time.Duration(grace) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
	}
}

func policy(r v1.RestartPolicy) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.RestartPolicy = r }
}

func inits(all ...v1.Container) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.InitContainers = all }
}

func sidecar(name string) v1.Container {
	always := v1.ContainerRestartPolicyAlways
	return v1.Container{Name: name, Image: "img:1", RestartPolicy: &always}
}

func probes(p *v1.Pod) {
	probe := &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}}
	c := &p.Spec.Containers[0]
	c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = probe, probe, probe
}

func killing(name, id string, grace int64, why string) Action {
	return Action{Kind: KillContainer, Container: name, ID: id, Grace: grace, Why: why}
}

type planCase struct {
	name string
	o    Observed
	want want
}

func (c planCase) run(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(c.want, inShort(plan(c.o, epoch))); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// with changes an observation.
func with(o Observed, change func(*Observed)) Observed { change(&o); return o }

func TestPlanBringsAPodUp(t *testing.T) {
	creating := "waiting ContainerCreating"
	cases := []planCase{
		{"a Pod that is new needs its volumes", fresh(), want{
			Actions: []Action{{Kind: SetUpVolumes, Why: "the Pod's volumes are not in place"}}, Phase: v1.PodPending, States: creating}},
		{"with volumes it needs a sandbox", with(fresh(), func(o *Observed) { o.VolumesReady = true }), want{
			Actions: []Action{{Kind: RunSandbox, Why: "no pod sandbox exists"}}, Phase: v1.PodPending, States: creating}},
		{"nothing is done twice while the sandbox is being made", with(fresh(), func(o *Observed) {
			o.VolumesReady = true
			fly(o, epoch, Action{Kind: RunSandbox})
		}), want{Phase: v1.PodPending, States: creating}},
		{"a sandbox that failed waits before it is tried again", with(fresh(), func(o *Observed) {
			o.VolumesReady = true
			o.Failures[laneSandbox] = Failure{Message: "no network", Count: 1, At: epoch, RetryAt: after(time.Second)}
		}), want{Phase: v1.PodPending, States: creating, Recheck: after(time.Second)}},
		{"in a sandbox a container needs its image", with(fresh(), inBox), want{
			Actions: []Action{{Kind: EnsureImage, Container: "web", Why: "container web needs image img:1"}}, Phase: v1.PodPending, States: creating}},
		{"with its image it is started", with(fresh(), withImage), want{
			Actions: []Action{{Kind: StartContainer, Container: "web", ID: "s0", Why: "container web has not run yet"}}, Phase: v1.PodPending, States: creating}},
		{"a restart count goes on from the logs that are there", with(fresh(), func(o *Observed) {
			withImage(o)
			o.LoggedAttempts = map[string]uint32{"web": 4}
		}), want{Actions: []Action{{Kind: StartContainer, Container: "web", ID: "s0", Attempt: 4, Why: "container web has not run yet"}},
			Phase: v1.PodPending, States: creating}},
		{"a container is not shown as running before its start is complete", with(fresh(), func(o *Observed) {
			inBox(o)
			add(o, running("web", "c0", "s0"))
			fly(o, epoch, Action{Kind: StartContainer, Container: "web"})
		}), want{Phase: v1.PodPending, States: creating}},
		{"containers start one after another, images come beside", with(fresh(func(p *v1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "x", Image: "x:1"}, v1.Container{Name: "y", Image: "y:1"})
		}), func(o *Observed) {
			withImage(o)
			o.Images["x"] = podspec.Image{Ref: "x"}
		}), want{Actions: []Action{
			{Kind: StartContainer, Container: "web", ID: "s0", Why: "container web has not run yet"},
			{Kind: EnsureImage, Container: "y", Why: "container y needs image y:1"},
		}, Phase: v1.PodPending, States: creating + ", " + creating + ", " + creating}},
		{"a Pod that runs is left alone", up(), want{Phase: v1.PodRunning, States: "running", Ready: true}},
		{"one whose process has ended is not ready, before the runtime says so", with(up(), func(o *Observed) {
			o.Exited = map[string]bool{o.Runtime.Containers[0].ID: true}
		}), want{Phase: v1.PodRunning, States: "running"}},
		{"one that was created and never started is removed", with(fresh(), func(o *Observed) {
			inBox(o)
			c := running("web", "c0", "s0")
			c.Phase = podruntime.Created
			add(o, c)
		}), want{Actions: []Action{{Kind: RemoveContainer, Container: "web", ID: "c0", Why: "it was created and never started"}},
			Phase: v1.PodPending, States: creating}},
		{"a refused Pod fails and nothing is done", with(fresh(), func(o *Observed) {
			o.Refused = &status.Verdict{Reason: "OutOfcpu", Message: "Pod was rejected: …"}
		}), want{Phase: v1.PodFailed}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

func inBox(o *Observed) {
	o.VolumesReady = true
	o.Runtime.Sandboxes = []podruntime.Sandbox{box("s0", 0)}
}

func withImage(o *Observed) {
	inBox(o)
	o.Images["web"] = podspec.Image{Ref: "img"}
}

func TestPlanRestarts(t *testing.T) {
	first := exited(running("web", "web0", "s0"), 1, time.Second)
	crash := func(change ...func(*v1.Pod)) Observed {
		o := up(change...)
		set(&o, first)
		return o
	}
	ended := "ended 1 Error"
	image := Action{Kind: EnsureImage, Container: "web", Why: "container web needs image img:1"}
	cases := []planCase{
		{"the first restart comes at once", crash(), want{Actions: []Action{image}, Phase: v1.PodRunning, States: ended}},
		{"with the image looked up it starts, its count raised", with(crash(), func(o *Observed) { o.Images["web"] = podspec.Image{} }), want{
			Actions: []Action{{Kind: StartContainer, Container: "web", ID: "s0", Attempt: 1, Why: "container web ended with code 1"}},
			Phase:   v1.PodRunning, States: ended}},
		{"the next one waits", with(crash(), func(o *Observed) {
			o.Restarts["web"] = Backoff{Delay: 10 * time.Second, Since: after(-time.Minute)}
		}), want{Phase: v1.PodRunning, States: "waiting CrashLoopBackOff", Recheck: after(9 * time.Second), Notices: []Notice{{
			Key: "crash/web0", Container: "web", Type: "Warning", Reason: "BackOff",
			Message: "Back-off restarting failed container web in pod p_d(u)"}}}},
		{"it waits from when the end was seen, when the wall clock was set back since", with(crash(), func(o *Observed) {
			later := first
			later.FinishedAt = after(24 * time.Hour)
			set(o, later)
			o.Restarts["web"], o.Ends = Backoff{Delay: 10 * time.Second, Since: after(-time.Minute)}, map[string]time.Time{"web0": after(-11 * time.Second)}
		}), want{Actions: []Action{image}, Phase: v1.PodRunning, States: ended}},
		{"it waits no less when the wall clock was set forward since", with(crash(), func(o *Observed) {
			earlier := first
			earlier.FinishedAt = after(-24 * time.Hour)
			set(o, earlier)
			o.Restarts["web"], o.Ends = Backoff{Delay: 10 * time.Second, Since: after(-time.Minute)}, map[string]time.Time{"web0": after(-time.Second)}
		}), want{Phase: v1.PodRunning, States: "waiting CrashLoopBackOff", Recheck: after(9 * time.Second), Notices: []Notice{{
			Key: "crash/web0", Container: "web", Type: "Warning", Reason: "BackOff",
			Message: "Back-off restarting failed container web in pod p_d(u)"}}}},
		{"a long run forgives", with(crash(), func(o *Observed) {
			o.Restarts["web"] = Backoff{Delay: 5 * time.Minute, Since: after(-11 * time.Minute)}
		}), want{Actions: []Action{image}, Phase: v1.PodRunning, States: ended}},
		{"OnFailure does not restart what succeeded", with(up(policy(v1.RestartPolicyOnFailure)), func(o *Observed) {
			set(o, exited(running("web", "web0", "s0"), 0, time.Second))
		}), want{Actions: []Action{{Kind: StopSandbox, ID: "s0", Why: "no container of the Pod runs"}}, Phase: v1.PodSucceeded, States: "ended 0 Completed"}},
		{"Never ends the Pod", crash(policy(v1.RestartPolicyNever)), want{
			Actions: []Action{{Kind: StopSandbox, ID: "s0", Why: "no container of the Pod runs"}}, Phase: v1.PodFailed, States: ended}},
		{"of many instances two are kept", with(crash(), func(o *Observed) {
			add(o, exited(running("web", "web1", "s0"), 1, time.Second))
			add(o, running("web", "web2", "s0"))
		}), want{Actions: []Action{{Kind: RemoveContainer, Container: "web", ID: "web0", Why: "newer instances exist"}},
			Phase: v1.PodRunning, States: "running", Ready: true}},
		{"a new definition replaces the instance", with(up(), func(o *Observed) {
			o.Runtime.Containers[0].Hash = "other"
		}), want{Actions: []Action{killing("web", "web0", 30, "Container web definition changed, will be restarted")},
			Phase: v1.PodRunning, States: "running", Ready: true}},
		{"what is in an unknown state is ended first", with(up(), func(o *Observed) {
			o.Runtime.Containers[0].Phase = podruntime.Unknown
		}), want{Actions: []Action{killing("web", "web0", 30, `Container is in "unknown" state, try killing it before restart`)},
			Phase: v1.PodRunning, States: "ended 137 ContainerStatusUnknown"}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

func TestPlanShowsWhyAContainerWaits(t *testing.T) {
	image := Action{Kind: EnsureImage, Container: "web", Why: "container web needs image img:1"}
	pull := func(ago time.Duration) Failure {
		return Failure{Reason: "ErrImagePull", Message: "not found", Image: "img:1", Count: 1, At: after(-ago), RetryAt: after(10*time.Second - ago)}
	}
	backOff := []Notice{
		{Key: "pull/web/1", Container: "web", Type: "Normal", Reason: "BackOff", Message: `Back-off pulling image "img:1"`},
		{Key: "pull/web/1/error", Container: "web", Type: "Warning", Reason: "Failed", Message: "Error: ImagePullBackOff"},
	}
	cases := []planCase{
		{"a pull that failed", with(fresh(), func(o *Observed) { inBox(o); o.Failures["image/web"] = pull(time.Second) }),
			want{Phase: v1.PodPending, States: "waiting ErrImagePull", Recheck: after(4 * time.Second)}},
		{"then that it waits", with(fresh(), func(o *Observed) { inBox(o); o.Failures["image/web"] = pull(6 * time.Second) }),
			want{Phase: v1.PodPending, States: "waiting ImagePullBackOff", Notices: backOff, Recheck: after(4 * time.Second)}},
		{"then it is tried again", with(fresh(), func(o *Observed) { inBox(o); o.Failures["image/web"] = pull(10 * time.Second) }),
			want{Actions: []Action{image}, Phase: v1.PodPending, States: "waiting ImagePullBackOff", Notices: backOff}},
		{"an image that must not be pulled does not back off", with(fresh(), func(o *Observed) {
			inBox(o)
			o.Failures["image/web"] = Failure{Reason: "ErrImageNeverPull", Count: 3, At: after(-8 * time.Second), RetryAt: after(time.Second)}
		}), want{Phase: v1.PodPending, States: "waiting ErrImageNeverPull", Recheck: after(time.Second)}},
		{"a configuration that lacks something", with(fresh(), func(o *Observed) {
			inBox(o)
			o.Failures["start/web"] = Failure{Reason: "CreateContainerConfigError", Message: `configmap "x" not found`, RetryAt: after(-time.Second)}
		}), want{Actions: []Action{image}, Phase: v1.PodPending, States: "waiting CreateContainerConfigError"}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
	p := plan(cases[1].o, epoch)
	if got, want := p.Status.ContainerStatuses[0].State.Waiting.Message, `Back-off pulling image "img:1": ErrImagePull: not found`; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

func TestPlanMindsProbes(t *testing.T) {
	probed := func(p Probed) func(*Observed) {
		return func(o *Observed) { o.Probes["web0"] = p }
	}
	cases := []planCase{
		{"before the probes speak a container is not ready", up(probes), want{Phase: v1.PodRunning, States: "running", Probe: []string{"web"}}},
		{"started and ready", with(up(probes), probed(Probed{Startup: ResultSuccess, Readiness: ResultSuccess})),
			want{Phase: v1.PodRunning, States: "running", Probe: []string{"web"}, Ready: true}},
		{"ready, not started", with(up(probes), probed(Probed{Readiness: ResultSuccess})),
			want{Phase: v1.PodRunning, States: "running", Probe: []string{"web"}}},
		{"what the API said of an adopted container holds until its probes speak", with(up(probes), func(o *Observed) {
			yes := true
			o.Old.ContainerStatuses[0].Started, o.Old.ContainerStatuses[0].Ready = &yes, true
		}), want{Phase: v1.PodRunning, States: "running", Probe: []string{"web"}, Ready: true}},
		{"a failed liveness probe ends it", with(up(probes), probed(Probed{Startup: ResultSuccess, Readiness: ResultSuccess, Liveness: ResultFailure})), want{
			Actions: []Action{killing("web", "web0", 30, "Container web failed liveness probe, will be restarted")},
			Phase:   v1.PodRunning, States: "running", Probe: []string{"web"}, Ready: true}},
		{"in the grace period of the probe", with(up(probes, func(p *v1.Pod) {
			own := int64(7)
			p.Spec.Containers[0].LivenessProbe = p.Spec.Containers[0].LivenessProbe.DeepCopy()
			p.Spec.Containers[0].LivenessProbe.TerminationGracePeriodSeconds = &own
		}), probed(Probed{Startup: ResultSuccess, Liveness: ResultFailure})), want{
			Actions: []Action{killing("web", "web0", 7, "Container web failed liveness probe, will be restarted")},
			Phase:   v1.PodRunning, States: "running", Probe: []string{"web"}}},
		{"a failed startup probe ends it for good where nothing restarts", with(up(probes, policy(v1.RestartPolicyNever)), probed(Probed{Startup: ResultFailure})), want{
			Actions: []Action{killing("web", "web0", 30, "Container web failed startup probe")},
			Phase:   v1.PodRunning, States: "running", Probe: []string{"web"}}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

package agent

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/agent/podruntime"
	"mend/internal/agent/podspec"
)

func TestPlanInitializes(t *testing.T) {
	two := inits(v1.Container{Name: "a", Image: "img:1"}, v1.Container{Name: "b", Image: "img:1"})
	begin := func(change ...func(*v1.Pod)) Observed {
		o := fresh(change...)
		inBox(&o)
		return o
	}
	image := func(name string) Action {
		return Action{Kind: EnsureImage, Container: name, Why: "container " + name + " needs image img:1"}
	}
	init := "waiting PodInitializing"
	cases := []planCase{
		{"the first init container comes first", begin(two), want{Actions: []Action{image("a")}, Phase: v1.PodPending, States: init + ", " + init + ", " + init}},
		{"while it runs the rest waits", with(begin(two), func(o *Observed) { add(o, running("a", "a0", "s0")) }),
			want{Phase: v1.PodPending, States: "running, " + init + ", " + init}},
		{"then the second", with(begin(two), func(o *Observed) { add(o, exited(running("a", "a0", "s0"), 0, time.Second)) }),
			want{Actions: []Action{image("b")}, Phase: v1.PodPending, States: "ended 0 Completed, " + init + ", " + init}},
		{"then the container", with(begin(two), func(o *Observed) {
			add(o, exited(running("a", "a0", "s0"), 0, time.Second))
			add(o, exited(running("b", "b0", "s0"), 0, time.Second))
		}), want{Actions: []Action{image("web")}, Phase: v1.PodPending, States: "ended 0 Completed, ended 0 Completed, " + init}},
		{"an earlier one that was removed is not run again", with(begin(two), func(o *Observed) {
			add(o, exited(running("b", "b0", "s0"), 0, time.Second))
		}), want{Actions: []Action{image("web")}, Phase: v1.PodPending, States: init + ", ended 0 Completed, " + init}},
		{"one that failed is run again", with(begin(two), func(o *Observed) { add(o, exited(running("a", "a0", "s0"), 1, time.Second)) }),
			want{Actions: []Action{image("a")}, Phase: v1.PodPending, States: "ended 1 Error, " + init + ", " + init}},
		{"or ends the Pod", with(begin(two, policy(v1.RestartPolicyNever)), func(o *Observed) { add(o, exited(running("a", "a0", "s0"), 1, time.Second)) }),
			want{Actions: []Action{{Kind: StopSandbox, ID: "s0", Why: "no container of the Pod runs"}}, Phase: v1.PodFailed, States: "ended 1 Error, " + init + ", " + init}},
		{"a sidecar that runs lets the next go", with(begin(inits(sidecar("a"))), func(o *Observed) { add(o, running("a", "a0", "s0")) }),
			want{Actions: []Action{image("web")}, Phase: v1.PodPending, States: "running, " + init}},
		{"a sidecar is restarted later too", with(up(inits(sidecar("a"))), func(o *Observed) { set(o, exited(running("a", "a0", "s0"), 0, time.Second)) }),
			want{Actions: []Action{image("a")}, Phase: v1.PodRunning, States: "ended 0 Completed, running"}},
		{"sidecars do not keep a finished Pod alive", with(up(policy(v1.RestartPolicyNever), inits(sidecar("a"), sidecar("b"))), func(o *Observed) {
			set(o, exited(running("web", "web0", "s0"), 0, time.Second))
		}), want{Actions: []Action{killing("b", "b0", 30, "Stopping container b")}, Phase: v1.PodRunning, States: "running, running, ended 0 Completed"}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

func TestPlanReplacesASandbox(t *testing.T) {
	lost := func(change ...func(*v1.Pod)) Observed {
		o := up(change...)
		o.Runtime.Sandboxes[0].Ready, o.Runtime.Sandboxes[0].IPs = false, nil
		return o
	}
	changed := []Notice{{Key: "sandbox/1", Type: "Normal", Reason: "SandboxChanged", Message: "Pod sandbox changed, it will be killed and re-created."}}
	cases := []planCase{
		{"what runs in the old one is ended first", lost(), want{
			Actions: []Action{killing("web", "web0", 30, "Stopping container web")}, Notices: changed, Phase: v1.PodRunning, States: "running", Ready: true}},
		{"then there is a new one", with(lost(), func(o *Observed) { set(o, exited(running("web", "web0", "s0"), 137, time.Second)) }), want{
			Actions: []Action{{Kind: RunSandbox, Attempt: 1, Why: "pod sandbox is not ready"}}, Notices: changed, Phase: v1.PodRunning, States: "ended 137 Error"}},
		{"but not where the Pod is to run once", with(lost(policy(v1.RestartPolicyNever)), func(o *Observed) {
			set(o, exited(running("web", "web0", "s0"), 137, time.Second))
		}), want{Phase: v1.PodFailed, States: "ended 137 Error"}},
		{"one that has no address is stopped", with(lost(), func(o *Observed) {
			o.Runtime.Sandboxes[0].Ready = true
			o.Runtime.Containers = nil
		}), want{Actions: []Action{{Kind: StopSandbox, ID: "s0", Why: "no container of the Pod runs"}}, Notices: changed,
			Phase: v1.PodRunning, States: "waiting ContainerCreating"}},
		{"a container of an old sandbox does not run beside the new", with(up(), func(o *Observed) {
			o.Runtime.Sandboxes = []podruntime.Sandbox{box("s1", 1), {ID: "s0"}}
		}), want{Actions: []Action{killing("web", "web0", 30, "Container web runs in a sandbox that was replaced")},
			Phase: v1.PodRunning, States: "running", Ready: true}},
		{"an old sandbox without containers is removed", with(up(), func(o *Observed) {
			o.Runtime.Sandboxes = []podruntime.Sandbox{box("s1", 1), {ID: "s0"}}
			o.Runtime.Containers[0].SandboxID = "s1"
		}), want{Actions: []Action{{Kind: RemoveSandbox, ID: "s0", Why: "it was replaced and holds no container"}},
			Phase: v1.PodRunning, States: "running", Ready: true}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

// ended is a deleted Pod of which nothing runs.
func ended(change ...func(*v1.Pod)) Observed {
	o := up(append(change, deleted(30))...)
	set(&o, exited(running("web", "web0", "s0"), 0, time.Second))
	o.Runtime.Sandboxes[0].Ready, o.Runtime.Sandboxes[0].IPs = false, nil
	return o
}

// settle makes the API show what the plan wants.
func settle(o *Observed) {
	o.Old = plan(*o, epoch).Status
	o.Pod = o.Pod.DeepCopy()
	o.Pod.Status = *o.Old.DeepCopy()
}

func TestPlanEndsAPod(t *testing.T) {
	all := inits(sidecar("a"), sidecar("b"))
	tearDown := Action{Kind: TearDown, Why: "the Pod has ended"}
	removeBox := Action{Kind: RemoveSandbox, ID: "s0", Why: "the Pod is deleted"}
	cases := []planCase{
		{"containers are ended in the grace period of the deletion", up(deleted(5)), want{
			Actions: []Action{killing("web", "web0", 5, "Stopping container web")}, Phase: v1.PodRunning, States: "running", Ready: true}},
		{"with no grace they still get two seconds", up(deleted(0)), want{
			Actions: []Action{killing("web", "web0", 2, "Stopping container web")}, Phase: v1.PodRunning, States: "running", Ready: true}},
		{"a shorter grace period takes over", with(up(deleted(1)), func(o *Observed) {
			fly(o, after(-time.Second), killing("web", "web0", 30, ""))
		}), want{Actions: []Action{{Kind: KillContainer, Container: "web", ID: "web0", Grace: 2, Again: true, Why: "Stopping container web"}},
			Phase: v1.PodRunning, States: "running", Ready: true}},
		{"a kill under way is not repeated", with(up(deleted(30)), func(o *Observed) {
			fly(o, after(-time.Second), killing("web", "web0", 30, ""))
		}), want{Phase: v1.PodRunning, States: "running", Ready: true}},
		{"sidecars go last", up(deleted(30), all), want{
			Actions: []Action{killing("web", "web0", 30, "Stopping container web")}, Recheck: after(30 * time.Second),
			Phase: v1.PodRunning, States: "running, running, running", Ready: true}},
		{"the last to start is the first to go, with what grace is left", with(up(deleted(30), all), func(o *Observed) {
			set(o, exited(running("web", "web0", "s0"), 0, time.Second))
			o.EndingSince = after(-10 * time.Second)
		}), want{Actions: []Action{killing("b", "b0", 20, "Stopping container b")}, Phase: v1.PodRunning, States: "running, running, ended 0 Completed"}},
		{"when the grace is spent all go", with(up(deleted(30), all), func(o *Observed) { o.EndingSince = after(-30 * time.Second) }), want{
			Actions: []Action{killing("web", "web0", 30, "Stopping container web"), killing("b", "b0", 2, "Stopping container b"), killing("a", "a0", 2, "Stopping container a")},
			Phase:   v1.PodRunning, States: "running, running, running", Ready: true}},
		{"a pull is abandoned", with(fresh(deleted(30)), func(o *Observed) {
			inBox(o)
			fly(o, epoch, Action{Kind: EnsureImage, Container: "web"})
		}), want{Actions: []Action{{Kind: Abandon, ID: "image/web", Why: "the Pod ends"}, {Kind: StopSandbox, ID: "s0", Why: "no container of the Pod runs"}},
			Phase: v1.PodPending, States: "waiting ContainerCreating"}},
		{"a start under way is waited for", with(fresh(deleted(30)), func(o *Observed) {
			inBox(o)
			fly(o, epoch, Action{Kind: StartContainer, Container: "web"})
		}), want{Phase: v1.PodPending, States: "waiting ContainerCreating"}},
		{"the final status is written before anything is removed", ended(), want{Phase: v1.PodSucceeded, States: "ended 0 Completed"}},
		{"then volumes and sandbox go", with(ended(), settle), want{
			Actions: []Action{tearDown, removeBox}, Phase: v1.PodSucceeded, States: "ended 0 Completed"}},
		{"then the object", with(with(ended(), settle), func(o *Observed) {
			o.TornDown, o.Runtime = true, podruntime.State{}
		}), want{Actions: []Action{{Kind: DeletePod, Why: "nothing of the Pod is left on the node"}}, Phase: v1.PodSucceeded, States: "ended 0 Completed"}},
		{"a Pod that is gone from the API was deleted without grace", with(up(), func(o *Observed) { o.Gone = true }), want{
			Actions: []Action{killing("web", "web0", 2, "Stopping container web")}, Phase: v1.PodRunning, States: "running", Ready: true}},
		{"or lost the grace that it had", with(up(deleted(30)), func(o *Observed) { o.Gone = true }), want{
			Actions: []Action{killing("web", "web0", 2, "Stopping container web")}, Phase: v1.PodRunning, States: "running", Ready: true}},
		{"and forgotten", with(ended(), func(o *Observed) { o.Gone, o.TornDown, o.Runtime = true, true, podruntime.State{} }), want{
			Actions: []Action{{Kind: Forget, Why: "the Pod is gone"}}, Phase: v1.PodFailed, States: "ended 137 ContainerStatusUnknown"}},
		{"a Pod that never ran fails", with(fresh(deleted(30)), func(o *Observed) { o.VolumesReady = true }), want{
			Phase: v1.PodFailed, States: "ended 137 ContainerStatusUnknown"}},
	}
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

func TestPlanKeepsAFinishedPodsContainers(t *testing.T) {
	o := up(policy(v1.RestartPolicyNever))
	set(&o, exited(running("web", "web0", "s0"), 0, time.Second))
	o.Runtime.Sandboxes[0].Ready, o.Runtime.Sandboxes[0].IPs = false, nil
	settle(&o)
	planCase{o: o, want: want{Actions: []Action{{Kind: TearDown, Why: "the Pod has ended"}},
		Phase: v1.PodSucceeded, States: "ended 0 Completed"}}.run(t)
	o.TornDown = true
	planCase{o: o, want: want{Phase: v1.PodSucceeded, States: "ended 0 Completed"}}.run(t)
}

func TestPlanEndsAPodPastItsDeadline(t *testing.T) {
	limit := int64(60)
	o := up(func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = &limit })
	o.Old.StartTime = &metav1.Time{Time: after(-59 * time.Second)}
	planCase{o: o, want: want{Phase: v1.PodRunning, States: "running", Ready: true, Recheck: after(time.Second)}}.run(t)
	o.Old.StartTime = &metav1.Time{Time: after(-60 * time.Second)}
	planCase{o: o, want: want{
		Actions: []Action{killing("web", "web0", 30, "Stopping container web")},
		Notices: []Notice{{Key: "deadline", Type: "Normal", Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}},
		Phase:   v1.PodRunning, States: "running", Ready: true}}.run(t)
}

func TestPlanHalts(t *testing.T) {
	o := up()
	o.Halt = true
	planCase{o: o, want: want{Actions: []Action{killing("web", "web0", 30, "Stopping container web")}, Phase: v1.PodRunning, States: "running", Ready: true}}.run(t)
	set(&o, exited(running("web", "web0", "s0"), 0, time.Second))
	planCase{o: o, want: want{Actions: []Action{{Kind: StopSandbox, ID: "s0", Why: "no container of the Pod runs"}}, Phase: v1.PodRunning, States: "running", Ready: true}}.run(t)
	o.Runtime.Sandboxes[0].Ready = false
	planCase{o: o, want: want{Phase: v1.PodRunning, States: "running", Ready: true}}.run(t)
}

func TestPlanStartsEphemeralContainersOnce(t *testing.T) {
	o := up(func(p *v1.Pod) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "dbg:1"}}}
	})
	o.Images["debug"] = podspec.Image{Ref: "dbg"}
	if got := plan(o, epoch).Actions; len(got) != 1 || got[0].Kind != StartContainer || got[0].Container != "debug" {
		t.Errorf("actions %+v", got)
	}
	add(&o, exited(running("debug", "debug0", "s0"), 1, time.Second))
	if got := plan(o, epoch).Actions; len(got) != 0 {
		t.Errorf("started again: %+v", got)
	}
}

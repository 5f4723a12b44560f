package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/runtime/sim"
)

// exits makes containers of an image end by themselves.
func exits(image string, after time.Duration, code int32) sim.Rule {
	return sim.Rule{Image: image, Exit: &sim.Exit{After: metav1.Duration{Duration: after}, Code: code}}
}

func from(name string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Image = name }
}

func TestContainerThatCrashesBacksOff(t *testing.T) {
	w := newWorld(t, exits("*crash*", 20*time.Millisecond, 3))
	created := w.create(pod("crash", from("crash:1")))
	p := w.until("crash", "CrashLoopBackOff", waitsFor("CrashLoopBackOff"))
	c := p.Status.ContainerStatuses[0]
	want := "back-off 10s restarting failed container=web pod=crash_default(" + string(p.UID) + ")"
	if c.State.Waiting.Message != want {
		t.Errorf("message %q, want %q", c.State.Waiting.Message, want)
	}
	if c.RestartCount != 1 || c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ExitCode != 3 {
		t.Errorf("status: %+v", c)
	}
	if p.Status.Phase != v1.PodRunning {
		t.Errorf("phase %s", p.Status.Phase)
	}
	w.untilEvents(created.UID, "Warning BackOff Back-off restarting failed container web in pod crash_default("+string(p.UID)+") | kubelet spec.containers{web}")
}

func TestMissingImage(t *testing.T) {
	w := newWorld(t)
	created := w.create(pod("bad", from("nginx:does-not-exist")))
	p := w.until("bad", "ErrImagePull", waitsFor("ErrImagePull"))
	failed := waiting(p).Message
	if !strings.Contains(failed, "not found") {
		t.Errorf("message %q", failed)
	}
	p = w.until("bad", "ImagePullBackOff", waitsFor("ImagePullBackOff"))
	if got, want := waiting(p).Message, `Back-off pulling image "nginx:does-not-exist": ErrImagePull: `+failed; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	w.untilEvents(created.UID,
		`Normal Pulling Pulling image "nginx:does-not-exist" | kubelet spec.containers{web}`,
		`Warning Failed Failed to pull image "nginx:does-not-exist": `,
		"Warning Failed Error: ErrImagePull",
		`Normal BackOff Back-off pulling image "nginx:does-not-exist"`,
		"Warning Failed Error: ImagePullBackOff")
	w.delete("bad")
	w.untilGone("bad")
}

func TestImagesThatCannotBeHad(t *testing.T) {
	w := newWorld(t)
	w.create(pod("never", from("absent:1"), func(p *v1.Pod) { p.Spec.Containers[0].ImagePullPolicy = v1.PullNever }))
	p := w.until("never", "ErrImageNeverPull", waitsFor("ErrImageNeverPull"))
	if got, want := waiting(p).Message, `Container image "absent:1" is not present with pull policy of Never`; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	w.create(pod("invalid", from("nginx::1")))
	p = w.until("invalid", "InvalidImageName", waitsFor("InvalidImageName"))
	if got, want := waiting(p).Message, `Failed to apply default image tag "nginx::1": couldn't parse image name "nginx::1": invalid reference format`; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

func TestMissingConfigMapIsNamedAndThenFound(t *testing.T) {
	w := newWorld(t)
	created := w.create(pod("web", func(p *v1.Pod) {
		p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}}}
	}))
	p := w.until("web", "CreateContainerConfigError", waitsFor("CreateContainerConfigError"))
	if got, want := waiting(p).Message, `configmap "cm" not found`; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	w.untilEvents(created.UID, `Warning Failed Error: configmap "cm" not found | kubelet spec.containers{web}`)
	w.configMap("cm", map[string]string{"a": "b"})
	w.until("web", "Ready", podutil.IsPodReady)
}

func (w *world) configMap(name string, data map[string]string) {
	w.t.Helper()
	_, err := w.client.CoreV1().ConfigMaps("default").Create(context.Background(),
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestVolumeThatCannotBeMounted(t *testing.T) {
	w := newWorld(t)
	created := w.create(pod("web", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "gone"}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}))
	w.untilEvents(created.UID, `Warning FailedMount MountVolume.SetUp failed for volume "v" : secret "gone" not found`)
	p := w.until("web", "ContainerCreating", waitsFor("ContainerCreating"))
	if p.Status.PodIP != "" {
		t.Errorf("a sandbox was made before the volumes: %+v", p.Status)
	}
}

func TestInitContainersRunInOrder(t *testing.T) {
	w := newWorld(t, exits("*init*", 30*time.Millisecond, 0))
	w.create(pod("web", func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{{Name: "one", Image: "init:1"}, {Name: "two", Image: "init:2"}}
	}))
	p := w.until("web", "Ready", podutil.IsPodReady)
	one, two := p.Status.InitContainerStatuses[0], p.Status.InitContainerStatuses[1]
	if one.Name != "one" || one.State.Terminated == nil || two.State.Terminated == nil || !one.Ready || !two.Ready {
		t.Errorf("init containers: %+v", p.Status.InitContainerStatuses)
	}
	if two.State.Terminated.StartedAt.Before(&one.State.Terminated.FinishedAt) {
		t.Errorf("two began before one ended")
	}
}

func TestPodThatFinishes(t *testing.T) {
	w := newWorld(t, exits("*done*", 20*time.Millisecond, 0), exits("*fails*", 20*time.Millisecond, 1))
	once := func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }
	w.create(pod("good", from("done:1"), once))
	w.create(pod("bad", from("fails:1"), once))
	p := w.until("good", "Succeeded", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded })
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "Completed" {
		t.Errorf("%+v", p.Status.ContainerStatuses)
	}
	w.until("bad", "Failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	w.delete("good")
	w.untilGone("good")
}

func TestProbesDecideReadiness(t *testing.T) {
	w := newWorld(t)
	created := w.create(pod("web", func(p *v1.Pod) {
		c := &p.Spec.Containers[0]
		c.ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	}))
	w.until("web", "Ready", podutil.IsPodReady)
	w.create(pod("refuses", func(p *v1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &v1.Probe{PeriodSeconds: 1, FailureThreshold: 1,
			ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(9)}}}
	}))
	p := w.until("refuses", "restarted", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	w.untilEvents(p.UID, "Warning Unhealthy Liveness probe failed: ", "Normal Killing Container web failed liveness probe, will be restarted")
	_ = created
}

func TestPodThatDoesNotFitIsRefused(t *testing.T) {
	w := newWorld(t)
	created := w.create(pod("huge", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1000")}
	}))
	p := w.until("huge", "refused", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	if p.Status.Reason != "OutOfcpu" || !strings.HasPrefix(p.Status.Message, "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: 0, capacity: ") {
		t.Errorf("reason %q, message %q", p.Status.Reason, p.Status.Message)
	}
	w.untilEvents(created.UID, "Warning OutOfcpu Node didn't have enough resource: cpu")
	w.delete("huge")
	w.untilGone("huge")
}

package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/testkit"
)

func TestRealPodRunsRestartsAndIsDeleted(t *testing.T) {
	w := newRealWorld(t)
	w.create(pod("web"))
	p := w.until("web", "Ready", podutil.IsPodReady)
	pid := w.pidOf(p)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		t.Fatalf("no process has the container's pid: %v", err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	p = w.until("web", "Ready after a kill", func(p *v1.Pod) bool { return podutil.IsPodReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	if end := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; end == nil || end.ExitCode != 137 || end.Reason != "Error" {
		t.Errorf("last state: %+v", end)
	}
	dir := filepath.Join(w.config.DataDir, "pods", string(p.UID))
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	w.delete("web")
	w.untilGone("web")
	for _, left := range []string{dir, "/sys/fs/cgroup/memory" + w.config.CgroupParent + "/besteffort/pod" + string(p.UID)} {
		if _, err := os.Stat(left); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", left, err)
		}
	}
	testkit.WaitFor(t, "logs to be removed", func() error {
		left, err := filepath.Glob(filepath.Join(w.config.LogDir, "*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %v", left)
		}
		return err
	})
}

func (w *world) delete(name string) {
	w.t.Helper()
	if err := w.client.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// pidOf is the process of a Pod's first container.
func (w *world) pidOf(p *v1.Pod) int {
	w.t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	resp, err := w.runtime.ContainerStatus(context.Background(), id, true)
	if err != nil {
		w.t.Fatal(err)
	}
	var pid int
	_, after, _ := strings.Cut(resp.Info["info"], `"pid":`)
	if _, err := fmt.Sscan(strings.TrimLeft(after, " "), &pid); err != nil {
		w.t.Fatalf("no pid in %s: %v", resp.Info["info"], err)
	}
	return pid
}

func TestRealLimitsAreEnforced(t *testing.T) {
	w := newRealWorld(t)
	w.create(pod("web", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("96Mi")},
		}
	}))
	p := w.until("web", "Ready", podutil.IsPodReady)
	if p.Status.QOSClass != v1.PodQOSBurstable {
		t.Errorf("QoS class %s", p.Status.QOSClass)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("the files below are those of cgroup v1")
	}
	group := w.config.CgroupParent + "/burstable/pod" + string(p.UID)
	for file, want := range map[string]string{
		"cpu" + group + "/cpu.shares":                   "102",
		"cpu" + group + "/cpu.cfs_quota_us":             "50000",
		"memory" + group + "/memory.limit_in_bytes":     fmt.Sprint(96 << 20),
		"cpu" + group + "/" + "*" + "/cpu.cfs_quota_us": "50000",
		"memory" + group + "/*/memory.limit_in_bytes":   fmt.Sprint(96 << 20),
	} {
		w.fileSays("/sys/fs/cgroup/"+file, want)
	}
}

// fileSays wants one of the files that pattern names to hold want.
func (w *world) fileSays(pattern, want string) {
	w.t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		w.t.Errorf("no file %s (%v)", pattern, err)
		return
	}
	var have []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			w.t.Error(err)
		}
		have = append(have, strings.TrimSpace(string(text)))
	}
	if !slices.Contains(have, want) {
		w.t.Errorf("%s: %v, want %s", pattern, have, want)
	}
}

func TestRealContainerIsOOMKilled(t *testing.T) {
	w := newRealWorld(t)
	w.create(pod("leak", func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("32Mi")}
	}))
	p := w.until("leak", "Ready", podutil.IsPodReady)
	// /dev/shm counts as the container's memory.
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, errOut, err := w.runtime.ExecSync(ctx, id, []string{"curl", "-X", "POST", "http://127.0.0.1:8080/leak?mib=200"}, 15*time.Second)
	t.Logf("leak: %s %s %v", out, errOut, err)
	p = w.until("leak", "OOMKilled", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].State.Terminated != nil })
	if end := p.Status.ContainerStatuses[0].State.Terminated; end.Reason != "OOMKilled" || end.ExitCode != 137 {
		t.Errorf("ended with %+v", end)
	}
	if p.Status.Phase != v1.PodFailed {
		t.Errorf("phase %s", p.Status.Phase)
	}
}

// furnished is a Pod with volumes of every kind and variables from every source.
func furnished(p *v1.Pod) {
	group := int64(2000)
	cm := v1.LocalObjectReference{Name: "cm"}
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	p.Spec.Volumes = []v1.Volume{
		{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: cm}}},
		{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}},
		{Name: "disk", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
		{Name: "down", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}},
	}
	c := &p.Spec.Containers[0]
	c.VolumeMounts = []v1.VolumeMount{
		{Name: "config", MountPath: "/config"}, {Name: "config", MountPath: "/one", SubPath: "file"},
		{Name: "secret", MountPath: "/secret"}, {Name: "disk", MountPath: "/disk"}, {Name: "memory", MountPath: "/memory"},
		{Name: "down", MountPath: "/down"}, {Name: "disk", MountPath: "/sub", SubPath: "a/b"},
	}
	c.Env = []v1.EnvVar{
		{Name: "WHO", Value: "me"},
		{Name: "KEY", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: cm, Key: "key"}}},
		{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Key: "password"}}},
		{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: "BOTH", Value: "$(WHO) at $(IP), $$(WHO) $(NONE)"},
	}
}

func TestRealVolumesAndEnvironment(t *testing.T) {
	w := newRealWorld(t)
	w.configMap("cm", map[string]string{"key": "value of $(WHO)", "file": "content"})
	_, err := w.client.CoreV1().Secrets("default").Create(context.Background(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Data: map[string][]byte{"password": []byte("pass")}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.create(pod("web", furnished))
	p := w.until("web", "Ready", podutil.IsPodReady)
	proc := fmt.Sprintf("/proc/%d", w.pidOf(p))
	for _, want := range []string{"KEY=value of $(WHO)", "PASSWORD=pass", "IP=" + p.Status.PodIP, "BOTH=me at " + p.Status.PodIP + ", $(WHO) $(NONE)"} {
		w.holds(proc+"/environ", want+"\x00")
	}
	root := proc + "/root"
	for file, want := range map[string]string{
		"/config/key": "value of $(WHO)", "/one": "content", "/secret/password": "pass", "/down/labels": `app="web"`, "/etc/hosts": p.Status.PodIP + "\tweb\n",
	} {
		w.holds(root+file, want)
	}
	for _, dir := range []string{"/disk", "/memory", "/sub"} {
		if err := os.WriteFile(root+dir+"/x", nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	w.delete("web")
	w.untilGone("web")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), string(p.UID)) {
		t.Error("mounts of the Pod are left")
	}
}

func (w *world) holds(file, want string) {
	w.t.Helper()
	have, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(have), want) {
		w.t.Errorf("%s: %v, %q, want %q in it", file, err, have, want)
	}
}

func TestRealContainersAreAdopted(t *testing.T) {
	w := newRealWorld(t)
	w.create(pod("web"))
	w.create(pod("bye"))
	p := w.until("web", "Ready", podutil.IsPodReady)
	bye := w.until("bye", "Ready", podutil.IsPodReady)
	w.stop()
	none := int64(0)
	if err := w.client.CoreV1().Pods("default").Delete(context.Background(), "bye", metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	w.start()
	testkit.WaitFor(t, "what is left of the deleted Pod to be removed", func() error {
		boxes, err := w.runtime.ListPodSandbox(context.Background(), &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(bye.UID)}})
		if err == nil && len(boxes) > 0 {
			err = fmt.Errorf("%d sandboxes", len(boxes))
		}
		return err
	})
	now := w.until("web", "still Ready", podutil.IsPodReady)
	if now.Status.ContainerStatuses[0].ContainerID != p.Status.ContainerStatuses[0].ContainerID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the container was not adopted: %+v", now.Status.ContainerStatuses[0])
	}
}

func TestRealPodsSurviveACrashOfContainerd(t *testing.T) {
	w := newRealWorld(t)
	w.create(pod("web"))
	p := w.until("web", "Ready", podutil.IsPodReady)
	pid := w.pidOf(p)
	if err := syscall.Kill(w.supervisor.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// It ends while nobody watches.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.until("web", "restarted", func(p *v1.Pod) bool { return podutil.IsPodReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	w.create(pod("next"))
	w.until("next", "Ready", podutil.IsPodReady)
	w.delete("next")
	w.untilGone("next")
}

func TestRealPodOnTheHostsNetwork(t *testing.T) {
	w := newRealWorld(t)
	w.create(pod("host", func(p *v1.Pod) {
		p.Spec.HostNetwork, p.Spec.DNSPolicy = true, v1.DNSClusterFirst
		p.Spec.Containers[0].Command = []string{"sleep", "1000"}
	}))
	p := w.until("host", "Ready", podutil.IsPodReady)
	if p.Status.PodIP != w.config.NodeIP || p.Status.HostIP != w.config.NodeIP {
		t.Errorf("addresses: %+v", p.Status)
	}
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", w.pidOf(p))); err != nil || theirs != ours {
		t.Errorf("network namespace %s, ours %s, %v", theirs, ours, err)
	}
}

func TestRealImageIsMissing(t *testing.T) {
	w := newRealWorld(t)
	created := w.create(pod("bad", from("127.0.0.1:1/none:1")))
	p := w.until("bad", "ErrImagePull", waitsFor("ErrImagePull"))
	t.Log(waiting(p).Message)
	w.untilEvents(created.UID, `Warning Failed Failed to pull image "127.0.0.1:1/none:1": `)
	w.create(pod("absent", from("mend.local/web:1.0"), func(p *v1.Pod) { p.Spec.Containers[0].Command = []string{"/no/such/program"} }))
	p = w.until("absent", "a program that is not there", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].LastTerminationState.Terminated != nil
	})
	if end := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; end.Reason != "StartError" || end.ExitCode != 128 {
		t.Errorf("%+v", end)
	}
}

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// TestPods goes through what the node agent promises, on one cluster.
func TestPods(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start()
	for _, tt := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"environment and volumes", podEnvironment},
		{"init containers run in order, before the others", podInit},
		{"a run to completion", podCompletes},
		{"a failing command backs off", podCrashLoops},
		{"logs of the container before", podPreviousLogs},
		{"a missing ConfigMap is named until it is there", podWaitsForConfig},
		{"an image that may not be pulled", podNeverPull},
		{"memory beyond the limit", podOOM},
		{"CPU limit in the kernel", podCPU},
		{"readiness follows the probe", podReadiness},
		{"a failed liveness probe restarts the container", podLiveness},
		{"exec probe is killed at its timeout", podExecProbe},
		{"a container deaf to SIGTERM ends with its grace period", podDeaf},
		{"exec and its exit code", podExec},
		{"port-forward", podPortForward},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sub := *c
			sub.t = t
			tt.test(t, &sub)
		})
	}
}

// pod waits until the Pod is as wanted and returns it.
func (c *cluster) pod(name, what string, reached func(*corev1.Pod) string) *corev1.Pod {
	c.t.Helper()
	var pod *corev1.Pod
	c.eventually(fmt.Sprintf("Pod %s %s", name, what), func() string {
		var err error
		if pod, err = c.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return reached(pod)
	})
	return pod
}

func (c *cluster) readyPod(name string) *corev1.Pod {
	c.t.Helper()
	return c.pod(name, "is Ready", func(pod *corev1.Pod) string {
		return want(podutil.IsPodReady(pod), "status %+v", pod.Status)
	})
}

// tell gives the sample web server in the Pod an order.
func (c *cluster) tell(pod *corev1.Pod, order string) {
	c.t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Post("http://"+pod.Status.PodIP+":8080"+order, "", nil)
	if err != nil {
		c.t.Fatalf("POST %s: %v", order, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		c.t.Fatalf("POST %s: %s %s", order, response.Status, text)
	}
}

// events waits until an event of the Pod matches.
func (c *cluster) event(name, pattern string) {
	c.t.Helper()
	c.eventually("event "+pattern, func() string {
		got := c.mustKubectl("get", "events", "--field-selector", "involvedObject.name="+name,
			"-o", `jsonpath={range .items[*]}{.type} {.reason} {.message}{"\n"}{end}`)
		return want(regexp.MustCompile("(?m)"+pattern).MatchString(got), "events:\n%s", got)
	})
}

func podEnvironment(t *testing.T, c *cluster) {
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "file"), []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.mustKubectl("create", "configmap", "conf", "--from-literal=key=value", "--from-literal=COLOUR=blue")
	c.mustKubectl("create", "secret", "generic", "hidden", "--from-literal=token=s3cret")
	c.mustApply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: env, labels: {tier: test}}
spec:
  containers:
  - name: web
    image: mend.local/web:1.0
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: KEY, valueFrom: {configMapKeyRef: {name: conf, key: key}}}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: hidden, key: token}}}
    - {name: BOTH, value: "$(KEY)-$(TOKEN)-$$(KEY)-$(ABSENT)"}
    envFrom: [{configMapRef: {name: conf}}]
    volumeMounts:
    - {name: empty, mountPath: /empty}
    - {name: memory, mountPath: /memory}
    - {name: conf, mountPath: /conf}
    - {name: hidden, mountPath: /hidden, readOnly: true}
    - {name: host, mountPath: /host}
  volumes:
  - {name: empty, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: conf, configMap: {name: conf, items: [{key: key, path: deep/er}]}}
  - {name: hidden, secret: {secretName: hidden}}
  - {name: host, hostPath: {path: %s, type: Directory}}
`, host))
	pod := c.readyPod("env")
	env := c.mustKubectl("exec", "env", "--", "env")
	for _, line := range []string{"NAME=env", "IP=" + pod.Status.PodIP, "NODE=" + pod.Spec.NodeName, "KEY=value",
		"TOKEN=s3cret", "BOTH=value-s3cret-$(KEY)-$(ABSENT)", "COLOUR=blue"} {
		if !strings.Contains("\n"+env, "\n"+line+"\n") {
			t.Errorf("no %q in\n%s", line, env)
		}
	}
	for path, content := range map[string]string{"/conf/deep/er": "value", "/hidden/token": "s3cret", "/host/file": "from the host"} {
		if got := c.mustKubectl("exec", "env", "--", "cat", path); got != content {
			t.Errorf("%s = %q, want %q", path, got, content)
		}
	}
	if got := c.mustKubectl("exec", "env", "--", "cat", "/proc/mounts"); !regexp.MustCompile(`tmpfs /memory tmpfs`).MatchString(got) {
		t.Errorf("/memory is not in memory:\n%s", got)
	}
	if pod.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("QoS class %s", pod.Status.QOSClass)
	}
}

func podInit(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: init}
spec:
  volumes: [{name: shared, emptyDir: {}}]
  initContainers:
  - {name: one, image: mend.local/web:1.0, command: [sh, -c, "echo one > /shared/one"], volumeMounts: [{name: shared, mountPath: /shared}]}
  - {name: two, image: mend.local/web:1.0, command: [cat, /shared/one], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - {name: web, image: mend.local/web:1.0}
  - {name: side, image: mend.local/web:2.0, command: [sleep, "3600"]}
`)
	pod := c.readyPod("init")
	if got := c.mustKubectl("logs", "init", "-c", "two"); got != "one\n" {
		t.Errorf("the second init container read %q", got)
	}
	for _, status := range pod.Status.InitContainerStatuses {
		if end := status.State.Terminated; end == nil || end.Reason != "Completed" || end.ExitCode != 0 {
			t.Errorf("%s: %+v", status.Name, status.State)
		}
	}
	if got := c.mustKubectl("get", "pod", "init", "--no-headers"); !regexp.MustCompile(`^init +2/2 +Running +0 `).MatchString(got) {
		t.Errorf("get pod = %q", got)
	}
}

func podCompletes(t *testing.T, c *cluster) {
	c.mustKubectl("run", "once", "--image=mend.local/web:1.0", "--restart=Never", "--command", "--", "echo", "done")
	pod := c.pod("once", "succeeds", func(pod *corev1.Pod) string {
		return want(pod.Status.Phase == corev1.PodSucceeded, "phase %s", pod.Status.Phase)
	})
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "Completed" {
		t.Errorf("state %+v", pod.Status.ContainerStatuses[0].State)
	}
	if got := c.mustKubectl("get", "pod", "once", "--no-headers"); !regexp.MustCompile(`^once +0/1 +Completed +0 `).MatchString(got) {
		t.Errorf("get pod = %q", got)
	}
	if got := c.mustKubectl("logs", "once"); got != "done\n" {
		t.Errorf("logs = %q", got)
	}
}

func podCrashLoops(t *testing.T, c *cluster) {
	c.mustKubectl("run", "crash", "--image=mend.local/web:1.0", "--command", "--", "sh", "-c", "echo failing; exit 3")
	pod := c.pod("crash", "backs off", func(pod *corev1.Pod) string {
		if len(pod.Status.ContainerStatuses) == 0 {
			return "no container status"
		}
		status := pod.Status.ContainerStatuses[0]
		return want(status.State.Waiting != nil && status.State.Waiting.Reason == "CrashLoopBackOff" && status.RestartCount >= 1, "status %+v", status)
	})
	status := pod.Status.ContainerStatuses[0]
	if last := status.LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" {
		t.Errorf("last state %+v", status.LastTerminationState)
	}
	pattern := `^back-off \d+s restarting failed container=crash pod=crash_default\(` + string(pod.UID) + `\)$`
	if !regexp.MustCompile(pattern).MatchString(status.State.Waiting.Message) {
		t.Errorf("message %q", status.State.Waiting.Message)
	}
	c.event("crash", `Warning BackOff Back-off restarting failed container crash in pod crash_default\(`)
	c.mustKubectl("delete", "pod", "crash", "--wait=false")
}

func podPreviousLogs(t *testing.T, c *cluster) {
	c.mustKubectl("run", "twice", "--image=mend.local/web:1.0", "--command", "--", "sh", "-c", "echo run of $HOSTNAME; sleep 1; exit 1")
	c.pod("twice", "restarts", func(pod *corev1.Pod) string {
		return want(len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].RestartCount > 0, "status %+v", pod.Status)
	})
	if got := c.mustKubectl("logs", "twice", "--previous"); got != "run of twice\n" {
		t.Errorf("logs --previous = %q", got)
	}
	c.mustKubectl("delete", "pod", "twice", "--wait=false")
}

func podWaitsForConfig(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: patient}
spec:
  containers: [{name: web, image: mend.local/web:1.0, envFrom: [{configMapRef: {name: later}}]}]
`)
	c.pod("patient", "names what is missing", func(pod *corev1.Pod) string {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Waiting == nil {
			return "not waiting"
		}
		waiting := pod.Status.ContainerStatuses[0].State.Waiting
		return want(waiting.Reason == "CreateContainerConfigError" && waiting.Message == `configmap "later" not found`, "waiting %+v", waiting)
	})
	c.mustKubectl("create", "configmap", "later", "--from-literal=A=b")
	c.readyPod("patient")
}

func podNeverPull(t *testing.T, c *cluster) {
	c.mustKubectl("run", "never", "--image=nowhere.invalid/x:1", "--image-pull-policy=Never")
	c.pod("never", "says so", func(pod *corev1.Pod) string {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Waiting == nil {
			return "not waiting"
		}
		waiting := pod.Status.ContainerStatuses[0].State.Waiting
		return want(waiting.Reason == "ErrImageNeverPull" &&
			waiting.Message == `Container image "nowhere.invalid/x:1" is not present with pull policy of Never`, "waiting %+v", waiting)
	})
	c.mustKubectl("delete", "pod", "never", "--wait=false")
}

func podOOM(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: hungry}
spec:
  containers: [{name: web, image: mend.local/web:1.0, resources: {limits: {memory: 64Mi, cpu: 500m}}}]
`)
	pod := c.readyPod("hungry")
	if pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("QoS class %s", pod.Status.QOSClass)
	}
	c.tell(pod, "/leak?mb=200")
	pod = c.pod("hungry", "was killed", func(pod *corev1.Pod) string {
		return want(pod.Status.ContainerStatuses[0].LastTerminationState.Terminated != nil, "status %+v", pod.Status)
	})
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last.Reason != "OOMKilled" || last.ExitCode != 137 {
		t.Errorf("last state %+v", last)
	}
	c.readyPod("hungry")
}

func podCPU(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: slow}
spec:
  containers: [{name: web, image: mend.local/web:1.0, resources: {requests: {cpu: 100m}, limits: {cpu: 250m}}}]
`)
	c.readyPod("slow")
	v1, v2 := c.kubectl("exec", "slow", "--", "cat", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), c.kubectl("exec", "slow", "--", "cat", "/sys/fs/cgroup/cpu.max")
	if strings.TrimSpace(v1.out) != "25000" && strings.TrimSpace(v2.out) != "25000 100000" {
		t.Errorf("quota: v1 %q %q, v2 %q %q", v1.out, v1.err, v2.out, v2.err)
	}
}

func podReadiness(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: moody}
spec:
  containers:
  - name: web
    image: mend.local/web:1.0
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}
`)
	pod := c.readyPod("moody")
	c.tell(pod, "/healthz/fail")
	pod = c.pod("moody", "is not Ready", func(pod *corev1.Pod) string { return want(!podutil.IsPodReady(pod), "still Ready") })
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && (condition.Reason != "ContainersNotReady" || condition.Message != "containers with unready status: [web]") {
			t.Errorf("condition %+v", condition)
		}
	}
	c.event("moody", `Warning Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 503`)
	c.tell(pod, "/healthz/ok")
	if pod = c.readyPod("moody"); pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("%d restarts", pod.Status.ContainerStatuses[0].RestartCount)
	}
}

func podLiveness(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: frail}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: mend.local/web:1.0, livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 2}}]
`)
	c.tell(c.readyPod("frail"), "/healthz/fail")
	c.pod("frail", "restarts", func(pod *corev1.Pod) string {
		return want(pod.Status.ContainerStatuses[0].RestartCount == 1 && podutil.IsPodReady(pod), "status %+v", pod.Status.ContainerStatuses[0])
	})
	c.event("frail", `Warning Unhealthy Liveness probe failed: HTTP probe failed with statuscode: 503`)
	c.event("frail", `Normal Killing Container web failed liveness probe, will be restarted`)
}

func podExecProbe(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: hanging}
spec:
  containers: [{name: web, image: mend.local/web:1.0, readinessProbe: {exec: {command: [sleep, "77777"]}, periodSeconds: 1, timeoutSeconds: 1}}]
`)
	c.event("hanging", `Warning Unhealthy Readiness probe (failed|errored).*(timed out|timeout|deadline)`)
	c.eventually("the probe's process is gone within a period", func() string {
		return want(countProcesses("sleep\x0077777") <= 1, "%d of them", countProcesses("sleep\x0077777"))
	})
	c.mustKubectl("delete", "pod", "hanging", "--grace-period=1")
	c.eventually("no process of the probe is left", func() string {
		return want(countProcesses("sleep\x0077777") == 0, "%d of them", countProcesses("sleep\x0077777"))
	})
}

// countProcesses counts those whose command line holds text.
func countProcesses(text string) int {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, path := range lines {
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), text) {
			n++
		}
	}
	return n
}

func podDeaf(t *testing.T, c *cluster) {
	c.mustApply(`
apiVersion: v1
kind: Pod
metadata: {name: deaf}
spec:
  terminationGracePeriodSeconds: 2
  containers: [{name: web, image: mend.local/web:1.0, env: [{name: IGNORE_SIGTERM, value: "1"}]}]
`)
	c.readyPod("deaf")
	began := time.Now()
	c.mustKubectl("delete", "pod", "deaf")
	if took := time.Since(began); took < 2*time.Second || took > 20*time.Second {
		t.Errorf("ended after %s, want its grace period of 2 s and little more", took)
	}
}

func podExec(t *testing.T, c *cluster) {
	c.mustKubectl("run", "target", "--image=mend.local/web:1.0")
	c.readyPod("target")
	if got := c.kubectl("exec", "target", "--", "sh", "-c", "echo out; exit 7"); got.code != 7 || got.out != "out\n" {
		t.Errorf("exec = %+v", got)
	}
	if got := c.runWith("typed", "kubectl", "exec", "-i", "target", "--", "cat"); got.code != 0 || got.out != "typed" {
		t.Errorf("exec -i = %+v", got)
	}
	if got := c.kubectl("exec", "target", "--", "nothing-like-it"); got.code == 0 {
		t.Errorf("exec of a missing program = %+v", got)
	}
}

func podPortForward(t *testing.T, c *cluster) {
	c.mustKubectl("run", "served", "--image=mend.local/web:2.0")
	c.readyPod("served")
	forward := c.background("kubectl", "port-forward", "pod/served", ":8080")
	address := forward.find(`Forwarding from (127\.0\.0\.1:\d+) -> 8080`)
	response, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + address + "/version")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); string(text) != "2.0\n" {
		t.Errorf("through the forwarded port: %q", text)
	}
}

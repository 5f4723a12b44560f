package kubeletapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func TestSmallAnswers(t *testing.T) {
	var ailment error
	w := newWorld(t, func(c *Config) { c.Healthy = func() error { return ailment } })
	w.run("web", "nginx", v1.Container{})
	w.list = append(w.list, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waiting", UID: "u"}})
	admin := w.admin()
	names := func(text string) (found []string) {
		var list v1.PodList
		if err := json.Unmarshal([]byte(text), &list); err != nil || list.Kind != "PodList" || list.APIVersion != "v1" {
			t.Fatalf("no PodList: %v %q", err, text)
		}
		for _, pod := range list.Items {
			found = append(found, pod.Name)
		}
		return found
	}
	if _, body := w.ask(admin, "GET", "/pods"); !slices.Equal(names(body), []string{"web", "waiting"}) {
		t.Errorf("/pods: %v", names(body))
	}
	if _, body := w.ask(admin, "GET", "/runningpods/"); !slices.Equal(names(body), []string{"web"}) {
		t.Errorf("/runningpods: %v", names(body))
	}
	if code, body := w.ask(admin, "GET", "/healthz"); code != 200 || body != "ok" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	ailment = errors.New("the loop hangs")
	if code, body := w.ask(admin, "GET", "/healthz"); code != 500 || !strings.Contains(body, "the loop hangs") {
		t.Errorf("/healthz when ill: %d %q", code, body)
	}
	if code, body := w.ask(admin, "GET", "/metrics"); code != 200 || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics: %d", code)
	}
	if code, _ := w.ask(admin, "POST", "/pods"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /pods: %d, want 405", code)
	}
	if code, _ := w.ask(admin, "GET", "/nowhere"); code != 404 {
		t.Errorf("/nowhere: %d", code)
	}
}

func TestRun(t *testing.T) {
	w := newWorld(t, nil)
	id := w.run("web", "nginx", v1.Container{})
	admin := w.admin()
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/run/default/web/app?cmd=echo+a+b":         {200, "a b\n"},
		"/run/default/web/uid-web/app?cmd=hostname": {200, "web\n"},
		"/run/default/web/other/app?cmd=true":       {404, "pod not found"},
		"/run/default/none/app?cmd=true":            {404, "pod does not exist"},
		"/run/default/web/none?cmd=true":            {500, `container not found ("none")`},
		"/run/default/web/app?cmd=false":            {500, "command 'false' exited with 1: "},
	} {
		if code, body := w.ask(admin, "POST", path); code != want.code || body != want.body {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, want.code, want.body)
		}
	}
	w.runtime.Exit(id, 0, "")
	if code, body := w.ask(admin, "POST", "/run/default/web/app?cmd=true"); code != 500 || body != `container not found ("app")` {
		t.Errorf("in a container that has ended: %d %q", code, body)
	}
}

func TestContainerLogs(t *testing.T) {
	w := newWorld(t, nil)
	id := w.run("web", "busybox", v1.Container{Command: []string{"sh", "-c", "echo one; echo two >&2; echo three; sleep 600"}})
	w.eventually("three lines are in the log", func() bool {
		if err := w.runtime.MakeContainerLog(id); err != nil {
			t.Fatal(err)
		}
		text, _ := os.ReadFile(w.dir + "/web/app/0.log")
		return bytes.Count(text, []byte("\n")) == 3
	})
	admin := w.admin()
	for path, want := range map[string]string{
		"/containerLogs/default/web/app":                                "one\ntwo\nthree\n",
		"/containerLogs/default/web/app?tailLines=1":                    "three\n",
		"/containerLogs/default/web/app?tail=2":                         "two\nthree\n",
		"/containerLogs/default/web/app?tail=all":                       "one\ntwo\nthree\n",
		"/containerLogs/default/web/app?limitBytes=5":                   "one\nt",
		"/containerLogs/default/web/app?stream=Stderr":                  "two\n",
		"/containerLogs/default/web/app?stream=Stdout":                  "one\nthree\n",
		"/containerLogs/default/web/app?sinceSeconds=3600":              "one\ntwo\nthree\n",
		"/containerLogs/default/web/app?sinceTime=2999-01-01T00:00:00Z": "",
	} {
		if code, body := w.ask(admin, "GET", path); code != 200 || body != want {
			t.Errorf("%s: %d %q, want %q", path, code, body, want)
		}
	}
	if _, body := w.ask(admin, "GET", "/containerLogs/default/web/app?timestamps=true&tailLines=1"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z three\n$`).MatchString(body) {
		t.Errorf("with timestamps: %q", body)
	}
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/containerLogs/default/none/app":              {404, `pod "none" does not exist`},
		"/containerLogs/default/web/none":              {404, `container "none" not found in pod "web"`},
		"/containerLogs/default/web/app?tailLines=x":   {400, `{"message": "Unable to decode query."}`},
		"/containerLogs/default/web/app?tailLines=-1":  {422, `{"message": "Invalid request."}`},
		"/containerLogs/default/web/app?previous=true": {400, `container "app" in pod "web" is not available`},
	} {
		if code, body := w.ask(admin, "GET", path); code != want.code || body != want.body {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, want.code, want.body)
		}
	}
	w.list[0].Status.ContainerStatuses = []v1.ContainerStatus{{Name: "app", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	if _, body := w.ask(admin, "GET", "/containerLogs/default/web/app?previous=true"); body != `previous terminated container "app" in pod "web" not found` {
		t.Errorf("previous of the first: %q", body)
	}
	w.runtime.Exit(id, 1, "")
	w.start(w.list[0], 1)
	if code, body := w.ask(admin, "GET", "/containerLogs/default/web/app?previous=true"); code != 200 || body != "one\ntwo\nthree\n" {
		t.Errorf("previous: %d %q", code, body)
	}
}

func TestWhyThereIsNoLog(t *testing.T) {
	waiting := func(reason string) v1.ContainerStatus {
		return v1.ContainerStatus{Name: "app", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}
	}
	for want, status := range map[string]v1.ContainerStatus{
		`container "app" in pod "web" is waiting to start: image can't be pulled`:            waiting("ErrImagePull"),
		`container "app" in pod "web" is waiting to start: trying and failing to pull image`: waiting("ImagePullBackOff"),
		`container "app" in pod "web" is waiting to start: ContainerCreating`:                waiting("ContainerCreating"),
		`container "app" in pod "web" is waiting to start - no logs yet`:                     {Name: "app"},
		`container "app" in pod "web" is terminated`:                                         {Name: "app", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}},
		`container "app" in pod "web" is not available`:                                      {Name: "other"},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{status}}}
		if got := whyNoLog(pod, "app", false); got.Error() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFollowedLogArrivesLineByLineAndEndsWithTheContainer(t *testing.T) {
	w := newWorld(t, nil)
	id := w.run("web", "nginx", v1.Container{})
	request, err := http.NewRequestWithContext(t.Context(), "GET", w.base+"/containerLogs/default/web/app?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := w.admin().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	next := func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the log has ended: %v", lines.Err())
		}
		return lines.Text()
	}
	if got := next(); got != "web latest on web: serving on ports 80 and 8080" {
		t.Errorf("first line %q", got)
	}
	if _, _, err := w.runtime.ExecSync(t.Context(), id, []string{"curl", "localhost/hostname"}, time.Second); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.Contains(got, "GET /hostname 200") {
		t.Errorf("second line %q", got)
	}
	w.runtime.Exit(id, 0, "")
	if lines.Scan() {
		t.Errorf("a line after the end: %q", lines.Text())
	}
}

func TestFollowersEndWithTheServer(t *testing.T) {
	w := newWorld(t, nil)
	w.run("web", "nginx", v1.Container{})
	response, err := w.admin().Get(w.base + "/containerLogs/default/web/app?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(io.Discard, response.Body)
	}()
	start := time.Now()
	w.end()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("the follower is still there")
	}
	if took := time.Since(start); took >= shutdownGrace {
		t.Errorf("the server took %v to end, want its streams to end at once", took)
	}
}

func TestSummary(t *testing.T) {
	w := newWorld(t, nil)
	w.run("web", "nginx", v1.Container{})
	w.run("gone", "nginx", v1.Container{})
	w.list = w.list[:1] // the agent has forgotten the second, the runtime has not
	admin := w.admin()
	code, body := w.ask(admin, "GET", "/stats/summary")
	var summary stats.Summary
	if err := json.Unmarshal([]byte(body), &summary); err != nil || code != 200 {
		t.Fatalf("%d %v %q", code, err, body)
	}
	node := summary.Node
	if node.NodeName != "n1" || *node.CPU.UsageCoreNanoSeconds == 0 || *node.Memory.WorkingSetBytes == 0 || *node.Fs.CapacityBytes == 0 || node.StartTime.IsZero() {
		t.Errorf("node: %+v", node)
	}
	if len(summary.Pods) != 1 || summary.Pods[0].PodRef != (stats.PodReference{Name: "web", Namespace: "default", UID: "uid-web"}) {
		t.Fatalf("pods: %+v", summary.Pods)
	}
	pod := summary.Pods[0]
	if pod.CPU == nil || pod.Memory == nil || len(pod.Containers) != 1 || pod.Containers[0].Name != "app" || pod.Containers[0].Memory == nil {
		t.Errorf("pod: %+v", pod)
	}
}

func TestSummaryOfCPUAndMemoryOnlyAndResourceMetrics(t *testing.T) {
	w := newWorld(t, nil)
	w.run("web", "nginx", v1.Container{})
	admin := w.admin()
	_, body := w.ask(admin, "GET", "/stats/summary?only_cpu_and_memory=true")
	if strings.Contains(body, "imageFs") || strings.Contains(body, "network") {
		t.Errorf("only CPU and memory: %s", body)
	}
	code, body := w.ask(admin, "GET", "/metrics/resource")
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="app",namespace="default",pod="web"} 0 `,
		`pod_memory_working_set_bytes{namespace="default",pod="web"} 0 `,
		"node_cpu_usage_seconds_total ", "resource_scrape_error 0",
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("/metrics/resource: %d, without %q in\n%s", code, want, body)
		}
	}
}

func TestRatesComeFromTwoLooks(t *testing.T) {
	u := newUsage(Config{})
	look := func(before map[string]sample, at time.Duration, total uint64) *uint64 {
		return u.rate("c", time.Unix(100, 0).Add(at), total, before)
	}
	if rate := look(nil, 0, 1e9); rate != nil {
		t.Errorf("a rate at the first look: %d", *rate)
	}
	if rate := look(u.earlier, 4*time.Second, 3e9); rate == nil || *rate != 5e8 {
		t.Errorf("2 core-seconds in 4 s: %v, want half a core", rate)
	}
	if rate := look(u.earlier, 4100*time.Millisecond, 9e9); rate == nil || *rate != 5e8 {
		t.Errorf("a look soon after: %v, want the rate before", rate)
	}
	if rate := look(u.earlier, 10*time.Second, 0); rate != nil {
		t.Errorf("a counter that went back gives a rate of %d", *rate)
	}
}

func TestProcFiles(t *testing.T) {
	busy, boot := parseStat([]byte("cpu  100 20 30 9999 888 1 2 3 50 0\ncpu0 1 1 1 1\nbtime 1700000000\n"))
	if busy != 156*uint64(clockTick) || boot.Unix() != 1700000000 {
		t.Errorf("busy %d, boot %v", busy, boot)
	}
	memory := parseMeminfo([]byte("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nAnonPages: 50 kB\n"))
	if *memory.UsageBytes != 900<<10 || *memory.WorkingSetBytes != 400<<10 || *memory.AvailableBytes != 600<<10 || *memory.RSSBytes != 50<<10 {
		t.Errorf("memory %+v", memory)
	}
}

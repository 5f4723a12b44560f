package kubeletapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	criclient "k8s.io/cri-client/pkg"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"mend/internal/agent/logs"
	"mend/internal/network"
	"mend/internal/runtime/containerd"
	"mend/internal/runtime/image"
)

const realLimit = 60 * time.Second

// newRealWorld has real containers, on a containerd and a network of its own.
func newRealWorld(t *testing.T) *world {
	t.Helper()
	_, err := containerd.Bundle()
	switch {
	case err == nil && os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		t.Fatalf("real containers need root and the runtime payload (%v)", err)
	default:
		t.Skipf("left out: real containers need root and the runtime payload (%v)", err)
	}
	var b [3]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(b[:])
	data, run := filepath.Join(t.TempDir(), "data"), filepath.Join("/run/mend", id)
	log := slog.New(slog.DiscardHandler)
	netConfig := network.Config{InstanceID: id, DataDir: data, RunDir: run, Log: log}
	config := containerd.Config{InstanceID: id, DataDir: data, RunDir: run, CgroupParent: "/mend-" + id, Log: log}
	ctx, cancel := context.WithTimeout(t.Context(), realLimit)
	defer cancel()
	var supervisor *containerd.Supervisor
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), realLimit)
		defer cancel()
		if supervisor != nil {
			if err := supervisor.Stop(ctx); err != nil {
				t.Errorf("stop: %v", err)
			}
		}
		if err := errors.Join(containerd.Purge(ctx, config), network.Teardown(ctx, netConfig)); err != nil {
			t.Errorf("purge: %v", err)
		}
	})
	net, err := network.Setup(ctx, netConfig)
	if err != nil {
		t.Fatal(err)
	}
	config.CNIConfDir = net.ConfDir
	if supervisor, err = containerd.Start(ctx, config); err != nil {
		t.Fatal(err)
	}
	importBuiltin(t, ctx, supervisor)
	runtime, err := criclient.NewRemoteRuntimeService(ctx, supervisor.Endpoint(), realLimit, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	images, err := criclient.NewRemoteImageService(ctx, supervisor.Endpoint(), realLimit, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	w := serveWorld(t, runtime, images, nil)
	w.cgroup = config.CgroupParent
	t.Cleanup(w.end)
	return w
}

func importBuiltin(t *testing.T, ctx context.Context, supervisor *containerd.Supervisor) {
	t.Helper()
	builtin, err := image.Connect(supervisor.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer builtin.Close()
	open := func() (io.ReadCloser, error) {
		return os.Open(filepath.Join(supervisor.BinDir(), containerd.ImagesFile))
	}
	if err := builtin.EnsureBuiltin(ctx, filepath.Base(supervisor.BinDir()), open); err != nil {
		t.Fatal(err)
	}
}

// TestRealContainers serves one real container in every way there is: its runtime is
// too slow to start for a test of each.
func TestRealContainers(t *testing.T) {
	w := newRealWorld(t)
	id := w.run("web", "mend.local/web:1.0", v1.Container{})
	for name, part := range map[string]func(*testing.T, *world, string){
		"exec": realExec, "port-forward": func(t *testing.T, w *world, _ string) { testForwards(t, w, "8080", "web 1.0 on web\n") },
		"stats": realStats, "attach": realAttach,
	} {
		t.Run(name, func(t *testing.T) { part(t, w, id) })
	}
	// The last one stops it.
	t.Run("logs", func(t *testing.T) { realLogs(t, w, id) })
}

func realExec(t *testing.T, w *world, _ string) {
	for protocol, executor := range protocols {
		for name, test := range map[string]struct {
			cmd    []string
			stdin  string
			tty    bool
			stdout string
			stderr string
			code   int
		}{
			"output and code":  {cmd: []string{"sh", "-c", "hostname; cat /none; exit 4"}, stdout: "web\n", stderr: "cat: /none: no such file or directory\n", code: 4},
			"input to its end": {cmd: []string{"cat"}, stdin: strings.Repeat("0123456789\n", 10_000), stdout: strings.Repeat("0123456789\n", 10_000)},
			"a terminal":       {cmd: []string{"echo", "hi"}, tty: true, stdout: "hi\r\n"},
		} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				query := url.Values{"output": {"1"}, "command": test.cmd}
				var stdout, stderr bytes.Buffer
				options := remotecommand.StreamOptions{Stdout: &stdout, Tty: test.tty}
				if test.stdin != "" {
					query.Set("input", "1")
					options.Stdin = strings.NewReader(test.stdin)
				}
				if test.tty {
					query.Set("tty", "1")
				} else {
					query.Set("error", "1")
					options.Stderr = &stderr
				}
				streams, err := executor(w.restConfig(), w.url("/exec/default/web/app", query))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), realLimit)
				defer cancel()
				err = streams.StreamWithContext(ctx, options)
				var exit clientexec.CodeExitError
				if errors.As(err, &exit) {
					err = nil
				}
				if err != nil || exit.Code != test.code || stdout.String() != test.stdout || stderr.String() != test.stderr {
					t.Errorf("got %.100q %.100q code %d, %v\nwant %.100q %.100q code %d", &stdout, &stderr, exit.Code, err, test.stdout, test.stderr, test.code)
				}
			})
		}
	}
	if code, body := w.ask(w.admin(), "POST", "/run/default/web/app?cmd=hostname"); code != 200 || body != "web\n" {
		t.Errorf("run: %d %q", code, body)
	}
}

// realAttach sees what the container prints while it is attached.
func realAttach(t *testing.T, w *world, id string) {
	for protocol, executor := range protocols {
		t.Run(protocol, func(t *testing.T) {
			streams, err := executor(w.restConfig(), w.url("/attach/default/web/app", url.Values{"output": {"1"}, "error": {"1"}}))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), realLimit)
			defer cancel()
			read, write := io.Pipe()
			go streams.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: write, Stderr: io.Discard})
			go func() { // it prints one line per request
				for ctx.Err() == nil {
					w.cri.ExecSync(ctx, id, []string{"curl", "localhost/hostname"}, time.Second)
				}
			}()
			line, err := bufio.NewReader(read).ReadString('\n')
			if err != nil || !strings.Contains(line, "GET /hostname 200") {
				t.Errorf("attached to %q, %v", line, err)
			}
		})
	}
}

func realStats(t *testing.T, w *world, _ string) {
	code, body := w.ask(w.admin(), "GET", "/stats/summary")
	var summary stats.Summary
	if err := json.Unmarshal([]byte(body), &summary); err != nil || code != 200 || len(summary.Pods) != 1 {
		t.Fatalf("%d %v %q", code, err, body)
	}
	pod := summary.Pods[0]
	if len(pod.Containers) != 1 || pod.Containers[0].Memory == nil || *pod.Containers[0].Memory.WorkingSetBytes == 0 || *pod.Containers[0].CPU.UsageCoreNanoSeconds == 0 {
		t.Errorf("container: %s", body)
	}
	if pod.Memory == nil || *pod.Memory.WorkingSetBytes == 0 || pod.Network == nil || *pod.Network.RxBytes == 0 || len(pod.Network.Interfaces) != 1 {
		t.Errorf("pod: %s", body)
	}
	if _, body := w.ask(w.admin(), "GET", "/metrics/resource"); !strings.Contains(body, `container_memory_working_set_bytes{container="app",namespace="default",pod="web"}`) {
		t.Errorf("resource metrics: %s", body)
	}
}

// realLogs follows the container over a rotation to its end.
func realLogs(t *testing.T, w *world, id string) {
	path := filepath.Join(w.dir, "web/app/0.log")
	request, err := http.NewRequestWithContext(t.Context(), "GET", w.base+"/containerLogs/default/web/app?follow=true&tailLines=0", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := w.admin().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	visit := func() {
		t.Helper()
		if _, _, err := w.cri.ExecSync(t.Context(), id, []string{"curl", "localhost/version"}, realLimit); err != nil {
			t.Fatal(err)
		}
	}
	visit()
	if !lines.Scan() || !strings.Contains(lines.Text(), "GET /version 200") {
		t.Fatalf("followed %q, %v", lines.Text(), lines.Err())
	}
	if err := (&logs.Rotator{Runtime: w.cri, MaxSize: 1}).Check(t.Context(), id, path); err != nil {
		t.Fatal(err)
	}
	visit()
	if !lines.Scan() || !strings.Contains(lines.Text(), "GET /version 200") {
		t.Fatalf("after a rotation: %q, %v", lines.Text(), lines.Err())
	}
	if err := w.cri.StopContainer(t.Context(), id, 10); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || lines.Text() != "web: terminating" || lines.Scan() {
		t.Errorf("at the end: %q, %v", lines.Text(), lines.Err())
	}
}

package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// newRuntime is a runtime that ends with the test.
func newRuntime(t *testing.T, options Options) *Runtime {
	t.Helper()
	r := New(options)
	t.Cleanup(r.Stop)
	return r
}

// podConfig is the configuration of a sandbox named name, with logs below dir.
func podConfig(name, dir string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: dir,
		Labels:       map[string]string{"io.kubernetes.pod.uid": "uid-" + name},
	}
}

func containerConfig(name, image string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: image},
		Command:  command,
		LogPath:  name + "/0.log",
	}
}

// startContainer runs a sandbox with one container and returns both ids.
func startContainer(t *testing.T, r *Runtime, pod *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig) (string, string) {
	t.Helper()
	ctx := t.Context()
	box, err := r.RunPodSandbox(ctx, pod, "")
	if err != nil {
		t.Fatalf("RunPodSandbox: %v", err)
	}
	if _, err := r.PullImage(ctx, config.Image, nil, pod); err != nil {
		t.Fatalf("PullImage: %v", err)
	}
	id, err := r.CreateContainer(ctx, box, config, pod)
	if err != nil {
		t.Fatalf("CreateContainer: %v", err)
	}
	if err := r.StartContainer(ctx, id); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
	return box, id
}

func statusOf(t *testing.T, r *Runtime, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	response, err := r.ContainerStatus(t.Context(), id, false)
	if err != nil {
		t.Fatalf("ContainerStatus: %v", err)
	}
	return response.Status
}

func TestContainerLifeEmitsItsEventsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{Exit: &Exit{Code: 3}})})
		r.behaviour.Rules[0].Exit.After.Duration = 2 * time.Second
		events := make(chan *runtimeapi.ContainerEventResponse, 100)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.GetContainerEvents(ctx, events, nil) }()
		synctest.Wait()

		box, id := startContainer(t, r, podConfig("a", ""), containerConfig("app", "nginx"))
		if got := statusOf(t, r, id).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("state after start = %v", got)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		end := statusOf(t, r, id)
		if end.State != runtimeapi.ContainerState_CONTAINER_EXITED || end.ExitCode != 3 || end.Reason != "Error" {
			t.Errorf("end = %v code %d reason %q", end.State, end.ExitCode, end.Reason)
		}
		if lived := end.FinishedAt - end.StartedAt; lived != int64(2*time.Second) {
			t.Errorf("lived %d ns, want 2 s", lived)
		}
		if err := r.RemovePodSandbox(ctx, box); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("GetContainerEvents ended with %v, want Canceled", err)
		}
		close(events)
		var got []string
		for event := range events {
			who := "container"
			if event.ContainerId == box {
				who = "sandbox"
			}
			got = append(got, who+" "+strings.TrimSuffix(strings.TrimPrefix(event.ContainerEventType.String(), "CONTAINER_"), "_EVENT"))
		}
		want := "sandbox CREATED,sandbox STARTED,container CREATED,container STARTED,container STOPPED,sandbox STOPPED,container DELETED,sandbox DELETED"
		if strings.Join(got, ",") != want {
			t.Errorf("events:\n got %s\nwant %s", strings.Join(got, ","), want)
		}
	})
}

func TestTheLogOfAQuietContainerIsMadeWhenAskedFor(t *testing.T) {
	for name, end := range map[string]bool{"running": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := newRuntime(t, Options{})
			_, id := startContainer(t, r, podConfig("a", dir), containerConfig("app", "quiet:1"))
			if end && !r.Exit(id, 1, "") {
				t.Fatal("the container did not run")
			}
			path := filepath.Join(dir, "app/0.log")
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Fatalf("a log before anybody asks for it: %v", err)
			}
			for range 2 {
				if err := r.MakeContainerLog(id); err != nil {
					t.Fatal(err)
				}
				if data, err := os.ReadFile(path); err != nil || len(data) != 0 {
					t.Errorf("log %q, %v; want an empty one", data, err)
				}
			}
			if err := r.MakeContainerLog("other"); status.Code(err) != codes.NotFound {
				t.Errorf("the log of a container that does not exist: %v", err)
			}
		})
	}
}

// TestALogIsHeldUntilItIsReadOrLong writes lines until they are too many to be held, and
// reads the log before that, at each length, or not at all.
func TestALogIsHeldUntilItIsReadOrLong(t *testing.T) {
	const lines, length = 100, 80
	for _, readAt := range []int{-1, 0, 1, 20, 60} {
		t.Run(fmt.Sprint(readAt), func(t *testing.T) {
			dir := t.TempDir()
			r := newRuntime(t, Options{})
			_, id := startContainer(t, r, podConfig("a", dir), containerConfig("app", "quiet:1"))
			c := r.containers[id]
			path := filepath.Join(dir, "app/0.log")
			want := ""
			for i := range lines {
				if i == readAt {
					if err := r.MakeContainerLog(id); err != nil {
						t.Fatal(err)
					}
				}
				text := fmt.Sprintf("%0*d\n", length, i)
				if err := c.logTo(runtimeapi.Stdout, []byte(text), time.Unix(0, 0)); err != nil {
					t.Fatal(err)
				}
				want += "1970-01-01T00:00:00Z stdout F " + text
				data, err := os.ReadFile(path)
				switch held := readAt < 0 || i < readAt; {
				case held && len(want) <= maxHeldLog && !os.IsNotExist(err):
					t.Fatalf("after %d lines, that nobody reads: %v", i+1, err)
				case (!held || len(want) > maxHeldLog) && string(data) != want:
					t.Fatalf("after %d lines: %q, %v; want %q", i+1, data, err, want)
				}
			}
		})
	}
}

func TestLogFileIsInCRIFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{Log: []string{"one", "two"}})})
		_, id := startContainer(t, r, podConfig("a", dir), containerConfig("app", "quiet:1"))
		synctest.Wait()
		if err := r.MakeContainerLog(id); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "app/0.log"))
		if err != nil {
			t.Fatal(err)
		}
		want := "2000-01-01T00:00:00Z stdout F one\n2000-01-01T00:00:00Z stdout F two\n"
		if string(data) != want {
			t.Errorf("log = %q, want %q", data, want)
		}
	})
}

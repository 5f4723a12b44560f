package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"
	"pgregory.net/rapid"
)

func seconds(n float64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(n * float64(time.Second))}
}

func TestContainersEndAsTheirCommandsSay(t *testing.T) {
	for name, test := range map[string]struct {
		image   string
		command []string
		after   time.Duration
		code    int32
		reason  string
		log     string
	}{
		"a script that exits":            {image: "busybox", command: []string{"sh", "-c", "echo hi; exit 7"}, code: 7, reason: "Error", log: "stdout F hi"},
		"a script that sleeps first":     {image: "busybox", command: []string{"sh", "-c", "sleep 3; echo done"}, after: 3 * time.Second, reason: "Completed", log: "stdout F done"},
		"sleep":                          {image: "busybox", command: []string{"sleep", "5"}, after: 5 * time.Second, reason: "Completed"},
		"false":                          {image: "busybox", command: []string{"false"}, code: 1, reason: "Error"},
		"a shell without input":          {image: "busybox", reason: "Completed"},
		"a script that is wrong":         {image: "busybox", command: []string{"sh", "-c", "done"}, code: 2, reason: "Error", log: "stderr F sh: syntax error"},
		"hello-world":                    {image: "hello-world", reason: "Completed", log: "Hello from Docker!"},
		"standard error is marked as so": {image: "busybox", command: []string{"sh", "-c", "echo bad >&2"}, reason: "Completed", log: "stderr F bad"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				r := newRuntime(t, Options{})
				_, id := startContainer(t, r, podConfig("a", dir), containerConfig("app", test.image, test.command...))
				if test.after > 0 {
					<-time.After(test.after - time.Millisecond)
					if got := statusOf(t, r, id).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
						t.Fatalf("state just before the end = %v", got)
					}
					<-time.After(time.Millisecond)
				}
				synctest.Wait()
				got := statusOf(t, r, id)
				if got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != test.code || got.Reason != test.reason {
					t.Errorf("got %v, code %d, reason %q; want code %d, reason %q", got.State, got.ExitCode, got.Reason, test.code, test.reason)
				}
				if err := r.MakeContainerLog(id); err != nil {
					t.Error(err)
				}
				if data, _ := os.ReadFile(filepath.Join(dir, "app/0.log")); !strings.Contains(string(data), test.log) {
					t.Errorf("log = %q, want %q in it", data, test.log)
				}
			})
		})
	}
}

func TestStop(t *testing.T) {
	for name, test := range map[string]struct {
		image   string
		command []string
		rule    Rule
		grace   int64
		took    time.Duration
		code    int32
	}{
		"a server ends at once":                    {image: "web:1", grace: 30},
		"a server that takes its time":             {image: "web:1", grace: 30, rule: Rule{Stop: &Stop{Delay: Delay{Delay: seconds(4)}, Code: 5}}, took: 4 * time.Second, code: 5},
		"a server that takes too long is killed":   {image: "web:1", grace: 3, rule: Rule{Stop: &Stop{Delay: Delay{Delay: seconds(4)}}}, took: 3 * time.Second, code: 137},
		"one that ignores the signal is killed":    {image: "web:1", grace: 2, rule: Rule{Stop: &Stop{Ignore: true}}, took: 2 * time.Second, code: 137},
		"sleep as process 1 ignores the signal":    {image: "busybox", command: []string{"sleep", "600"}, grace: 2, took: 2 * time.Second, code: 137},
		"without grace there is no signal to obey": {image: "web:1", rule: Rule{Stop: &Stop{Ignore: true}}, code: 137},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(test.rule)})
				_, id := startContainer(t, r, podConfig("a", ""), containerConfig("app", test.image, test.command...))
				synctest.Wait()
				start := time.Now()
				if err := r.StopContainer(t.Context(), id, test.grace); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				if got := statusOf(t, r, id); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != test.code {
					t.Errorf("got %v code %d, want code %d", got.State, got.ExitCode, test.code)
				}
				if err := r.StopContainer(t.Context(), id, 1); err != nil {
					t.Errorf("second stop: %v", err)
				}
			})
		})
	}
}

func TestStartFailsAsContainerdReportsIt(t *testing.T) {
	r := newRuntime(t, Options{})
	box, err := r.RunPodSandbox(t.Context(), podConfig("a", ""), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := r.CreateContainer(t.Context(), box, containerConfig("app", "nginx", "/does-not-exist"), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = r.StartContainer(t.Context(), id)
	if err == nil || !strings.Contains(err.Error(), `exec: "/does-not-exist": executable file not found`) {
		t.Errorf("StartContainer = %v", err)
	}
	if got := statusOf(t, r, id); got.ExitCode != 128 || got.Reason != "StartError" || got.StartedAt != 0 {
		t.Errorf("status after a failed start: code %d reason %q started %d", got.ExitCode, got.Reason, got.StartedAt)
	}
}

func TestStartDelayIsSeeded(t *testing.T) {
	took := func(seed int64, pod string) (elapsed time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			behaviour := DefaultBehaviour().WithRules(Rule{Start: &Start{Delay: Delay{Delay: seconds(1), Spread: seconds(10)}}})
			behaviour.Seed = seed
			r := newRuntime(t, Options{Behaviour: behaviour})
			start := time.Now()
			startContainer(t, r, podConfig(pod, ""), containerConfig("app", "web:1"))
			elapsed = time.Since(start)
		})
		return elapsed
	}
	first := took(1, "a")
	if first < time.Second || first >= 11*time.Second {
		t.Errorf("delay %v is not in its range", first)
	}
	if again := took(1, "a"); again != first {
		t.Errorf("same seed gave %v, then %v", first, again)
	}
	if took(2, "a") == first || took(1, "b") == first {
		t.Error("another seed or Pod gave the same delay")
	}
}

func TestPulls(t *testing.T) {
	r := newRuntime(t, Options{})
	for image, want := range map[string]string{
		"nginx:missing":              `rpc error: code = NotFound desc = failed to pull and unpack image "docker.io/library/nginx:missing": failed to resolve reference "docker.io/library/nginx:missing": docker.io/library/nginx:missing: not found`,
		"does-not-exist":             `docker.io/library/does-not-exist:latest: not found`,
		"mend.local/web:3.0":         `mend.local/web:3.0: not found`,
		"registry.invalid/app:1":     `Head "https://registry.invalid/v2/app/manifests/1": dial tcp: lookup registry.invalid: no such host`,
		"invalid.example.com/app:1":  `lookup invalid.example.com: no such host`,
		"UPPER":                      "failed to parse image reference",
		"nginx:1.24":                 "",
		"mend.local/web:1.0":         "",
		"registry.example.com/any:1": "",
	} {
		_, err := r.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: image}, nil, nil)
		switch {
		case want == "" && err != nil:
			t.Errorf("pull %s: %v", image, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("pull %s = %v\nwant %s", image, err, want)
		}
	}
	r.SetBehaviour(DefaultBehaviour().WithRules(Rule{Image: "*", Pull: &Pull{Error: "registry is down", Code: "Unavailable"}}))
	_, err := r.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: "nginx:1.24"}, nil, nil)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("after SetBehaviour: %v, want Unavailable", err)
	}
}

func TestImagesByReferenceAndID(t *testing.T) {
	r := newRuntime(t, Options{})
	get := func(name string) *runtimeapi.Image {
		t.Helper()
		response, err := r.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: name}, false)
		if err != nil {
			t.Fatal(err)
		}
		return response.Image
	}
	short := get("nginx")
	if short == nil || short.RepoTags[0] != "docker.io/library/nginx:latest" || short.Size == 0 {
		t.Fatalf("nginx = %v", short)
	}
	for _, name := range []string{"docker.io/library/nginx:latest", short.Id, short.RepoDigests[0]} {
		if got := get(name); got.GetId() != short.Id {
			t.Errorf("%s is %q, want %q", name, got.GetId(), short.Id)
		}
	}
	if get("busybox") != nil {
		t.Error("busybox is present without a pull")
	}
	if err := r.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: short.Id}); err != nil {
		t.Fatal(err)
	}
	if get("nginx") != nil {
		t.Error("nginx is there after its removal")
	}
	images, err := r.ListImages(t.Context(), nil)
	if err != nil || len(images) != len(DefaultBehaviour().Images)-1 {
		t.Errorf("%d images, %v", len(images), err)
	}
}

func TestExecSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{Exec: []ExecRule{
			{Command: "nginx -v", Stderr: "nginx version: nginx/1.25\n"},
		}})})
		config := containerConfig("app", "web:1")
		config.Envs = []*runtimeapi.KeyValue{{Key: "COLOUR", Value: []byte("blue")}}
		_, id := startContainer(t, r, podConfig("a", ""), config)
		exec := func(timeout time.Duration, cmd ...string) (string, string, error) {
			stdout, stderr, err := r.ExecSync(t.Context(), id, cmd, timeout)
			return string(stdout), string(stderr), err
		}
		if out, _, err := exec(0, "printenv", "COLOUR"); out != "blue\n" || err != nil {
			t.Errorf("printenv: %q %v", out, err)
		}
		if out, _, err := exec(0, "hostname"); out != "a\n" || err != nil {
			t.Errorf("hostname: %q %v", out, err)
		}
		if _, errOut, err := exec(0, "nginx", "-v"); errOut != "nginx version: nginx/1.25\n" || err != nil {
			t.Errorf("rule: %q %v", errOut, err)
		}
		if _, _, err := exec(0, "nope"); err == nil || !strings.Contains(err.Error(), `exec: "nope": executable file not found in $PATH`) {
			t.Errorf("missing program: %v", err)
		}
		r.Exit(id, 0, "")
		if _, _, err := exec(0, "true"); err == nil || !strings.Contains(err.Error(), "CONTAINER_EXITED") {
			t.Errorf("exec in an ended container: %v", err)
		}
	})
}

func TestExecSyncTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{Exec: []ExecRule{
			{Command: "check *", Stdout: "bad", Code: 9, Delay: seconds(2)},
		}})})
		_, id := startContainer(t, r, podConfig("a", ""), containerConfig("app", "web:1"))
		exec := func(timeout time.Duration, cmd ...string) (string, string, error) {
			stdout, stderr, err := r.ExecSync(t.Context(), id, cmd, timeout)
			return string(stdout), string(stderr), err
		}
		start := time.Now()
		var exit utilexec.CodeExitError
		if out, _, err := exec(0, "check", "it"); out != "bad" || !errors.As(err, &exit) || exit.Code != 9 || time.Since(start) != 2*time.Second {
			t.Errorf("rule with code: %q %v after %v", out, err, time.Since(start))
		}
		start = time.Now()
		if _, _, err := exec(time.Second, "sh", "-c", "sleep 10"); !errors.Is(err, remote.ErrCommandTimedOut) || time.Since(start) != time.Second {
			t.Errorf("timeout: %v after %v", err, time.Since(start))
		}
	})
}

func TestFilesLastFromProgramToProbe(t *testing.T) {
	// The liveness example of the Kubernetes documentation.
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime(t, Options{})
		_, id := startContainer(t, r, podConfig("a", ""), containerConfig("app", "busybox",
			"/bin/sh", "-c", "touch /tmp/healthy; sleep 30; rm -f /tmp/healthy; sleep 600"))
		synctest.Wait()
		if _, _, err := r.ExecSync(t.Context(), id, []string{"cat", "/tmp/healthy"}, time.Second); err != nil {
			t.Errorf("before 30 s: %v", err)
		}
		<-time.After(31 * time.Second)
		if _, _, err := r.ExecSync(t.Context(), id, []string{"cat", "/tmp/healthy"}, time.Second); err == nil {
			t.Error("after 30 s the file is still there")
		}
	})
}

func TestTenThousandPodsRestWithoutGoroutines(t *testing.T) {
	r := newRuntime(t, Options{})
	before := runtime.NumGoroutine()
	seen := map[string]bool{}
	for i := range 10_000 {
		box, id := startContainer(t, r, podConfig(fmt.Sprintf("p%d", i), ""), containerConfig("app", "registry.example.com/app:1"))
		response, err := r.PodSandboxStatus(t.Context(), box, false)
		if err != nil {
			t.Fatal(err)
		}
		if ip := response.Status.Network.Ip; seen[ip] {
			t.Fatalf("address %s twice", ip)
		} else {
			seen[ip] = true
		}
		seen[id] = true
	}
	if len(seen) != 20_000 {
		t.Errorf("%d distinct ids and addresses, want 20,000", len(seen))
	}
	deadline := time.After(30 * time.Second)
	for runtime.NumGoroutine() > before {
		select {
		case <-deadline:
			t.Fatalf("%d goroutines at rest, %d before", runtime.NumGoroutine(), before)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestAddressesAreUniqueAndAllUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := newAddresses(mustPrefix("10.1.2.0/28")) // 14 hosts, one of them the gateway
		var held []string
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				address, err := pool.take()
				if err != nil {
					if len(held) != 13 {
						t.Fatalf("no address left with %d of 13 taken", len(held))
					}
					return
				}
				for _, other := range held {
					if other == address.String() {
						t.Fatalf("%s is taken twice", other)
					}
				}
				if last := address.As4()[3]; last < 2 || last > 14 {
					t.Fatalf("%s is no Pod's address", address)
				}
				held = append(held, address.String())
			},
			"release": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing held")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				pool.release(mustAddr(held[i]))
				held = append(held[:i], held[i+1:]...)
			},
		})
	})
}

func TestBlockedCallsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{
			Pull: &Pull{Delay: Delay{Delay: seconds(60)}}, Stop: &Stop{Ignore: true},
		})})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.PullImage(ctx, &runtimeapi.ImageSpec{Image: "busybox"}, nil, nil); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("pull: %v", err)
		}
		_, id := startContainer(t, r, podConfig("a", ""), containerConfig("app", "nginx"))
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.StopContainer(ctx, id, 30); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("stop: %v", err)
		}
		if got := statusOf(t, r, id).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("container is %v after its stop was given up", got)
		}
	})
}

// BenchmarkPod takes a Pod through sandbox, create and start; B/op is what one costs.
func BenchmarkPod(b *testing.B) {
	r := New(Options{PodRange: mustPrefix("10.0.0.0/8")})
	defer r.Stop()
	ctx := b.Context()
	if _, err := r.PullImage(ctx, &runtimeapi.ImageSpec{Image: "app:1"}, nil, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := range b.N {
		box, err := r.RunPodSandbox(ctx, podConfig(fmt.Sprint("p", i), ""), "")
		if err != nil {
			b.Fatal(err)
		}
		id, err := r.CreateContainer(ctx, box, containerConfig("app", "app:1"), nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := r.StartContainer(ctx, id); err != nil {
			b.Fatal(err)
		}
	}
}

package sim

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func mustPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }
func mustAddr(text string) netip.Addr     { return netip.MustParseAddr(text) }

// browse is a client whose connections go to simulated Pods.
func browse(r *Runtime) *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: r.Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
}

func addressOf(t *testing.T, r *Runtime, box string) string {
	t.Helper()
	response, err := r.PodSandboxStatus(t.Context(), box, false)
	if err != nil {
		t.Fatal(err)
	}
	return response.Status.Network.Ip
}

func fetch(t *testing.T, client *http.Client, method, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestSampleImageAnswersAndObeys(t *testing.T) {
	r := newRuntime(t, Options{})
	box, id := startContainer(t, r, podConfig("web-1", ""), containerConfig("web", "mend.local/web:2.0"))
	client, base := browse(r), "http://"+addressOf(t, r, box)
	for _, step := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", ":80/", 200, "web 2.0 on web-1\n"},
		{"GET", ":8080/version", 200, "2.0\n"},
		{"GET", "/hostname", 200, "web-1\n"},
		{"GET", "/healthz", 200, "ok\n"},
		{"GET", "/nowhere", 404, "404 page not found\n"},
		{"POST", "/healthz/fail", 200, "done\n"},
		{"GET", "/healthz", 503, "unhealthy, as told\n"},
		{"POST", "/healthz/maybe", 400, "\"maybe\": want \"fail\" or \"ok\"\n"},
		{"POST", "/healthz/ok", 200, "done\n"},
		{"GET", "/healthz", 200, "ok\n"},
		{"POST", "/exit?code=900", 400, "code=\"900\": want a number from 0 to 255\n"},
		{"POST", "/exit?code=3", 200, "exiting with code 3\n"},
	} {
		if code, body := fetch(t, client, step.method, base+step.path); code != step.code || body != step.body {
			t.Errorf("%s %s = %d %q, want %d %q", step.method, step.path, code, body, step.code, step.body)
		}
	}
	waitEnded(t, r, id)
	if got := statusOf(t, r, id); got.ExitCode != 3 {
		t.Errorf("exit code %d, want 3", got.ExitCode)
	}
	_, err := client.Get(base + "/")
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "dial tcp "+addressOf(t, r, box)+":80: connect: connection refused") {
		t.Errorf("after the end: %v, want connection refused", err)
	}
}

func waitEnded(t *testing.T, r *Runtime, id string) {
	t.Helper()
	select {
	case <-r.ended(r.containers[id]):
	case <-time.After(30 * time.Second):
		t.Fatal("container did not end")
	}
}

func TestLeakBeyondTheLimitIsOutOfMemory(t *testing.T) {
	r := newRuntime(t, Options{})
	config := containerConfig("web", "nginx")
	config.Linux = &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 100 << 20}}
	box, id := startContainer(t, r, podConfig("web-1", ""), config)
	base := "http://" + addressOf(t, r, box)
	fetch(t, browse(r), "POST", base+"/leak?mb=60")
	if got := statusOf(t, r, id).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("state below the limit = %v", got)
	}
	fetch(t, browse(r), "POST", base+"/leak?mb=60")
	waitEnded(t, r, id)
	if got := statusOf(t, r, id); got.ExitCode != 137 || got.Reason != "OOMKilled" {
		t.Errorf("got code %d reason %q", got.ExitCode, got.Reason)
	}
}

func TestOtherImagesAnswerHealthOnAnyPortPathAndProtocol(t *testing.T) {
	r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{Image: "*sick*", Listen: &Listen{HealthStatus: 500}})})
	box, _ := startContainer(t, r, podConfig("a", ""), containerConfig("app", "registry.example.com/app:1"))
	sick, _ := startContainer(t, r, podConfig("b", ""), containerConfig("app", "registry.example.com/sick:1"))
	ip := addressOf(t, r, box)
	for _, url := range []string{"http://" + ip + ":1234/ready", "https://" + ip + ":8443/livez"} {
		if code, body := fetch(t, browse(r), "GET", url); code != 200 || body != "ok\n" {
			t.Errorf("%s = %d %q", url, code, body)
		}
	}
	if code, _ := fetch(t, browse(r), "GET", "http://"+addressOf(t, r, sick)+"/"); code != 500 {
		t.Errorf("sick answers %d, want 500", code)
	}
	for box, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		box: healthpb.HealthCheckResponse_SERVING, sick: healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(addressOf(t, r, box), "50051"),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return r.Dial(ctx, "tcp", address) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || answer.Status != want {
			t.Errorf("gRPC health = %v, %v; want %v", answer, err, want)
		}
	}
}

func TestDialErrorsAreThoseOfANetwork(t *testing.T) {
	r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{Image: "*deaf*", Listen: &Listen{Refuse: true}})})
	box, _ := startContainer(t, r, podConfig("a", ""), containerConfig("app", "deaf:1"))
	for address, want := range map[string]error{
		addressOf(t, r, box) + ":80": syscall.ECONNREFUSED,
		"10.244.99.99:80":            syscall.EHOSTUNREACH,
	} {
		conn, err := r.Dial(t.Context(), "tcp", address)
		if !errors.Is(err, want) {
			t.Errorf("dial %s = %v, %v; want %v", address, conn, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Dial(ended, "tcp", "10.244.99.99:80"); !errors.Is(err, context.Canceled) {
		t.Errorf("dial with an ended context: %v", err)
	}
}

func TestReadinessDelay(t *testing.T) {
	r := newRuntime(t, Options{Behaviour: DefaultBehaviour().WithRules(Rule{Ready: &Delay{Delay: seconds(0.3)}})})
	box, _ := startContainer(t, r, podConfig("a", ""), containerConfig("app", "nginx"))
	url := "http://" + addressOf(t, r, box) + "/healthz"
	start := time.Now()
	if code, _ := fetch(t, browse(r), "GET", url); code != 503 && time.Since(start) < 300*time.Millisecond {
		t.Errorf("before its delay: %d, want 503", code)
	}
	deadline := time.After(30 * time.Second)
	for {
		if code, _ := fetch(t, browse(r), "GET", url); code == 200 {
			break
		}
		select {
		case <-deadline:
			t.Fatal("never became ready")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("ready after %v, want 300 ms", took)
	}
}

// streamFrom runs a command over the address that the runtime gave.
func streamFrom(t *testing.T, address string, options remotecommand.StreamOptions) error {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: at.Host}, "POST", at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return executor.StreamWithContext(ctx, options)
}

func TestExecStreams(t *testing.T) {
	r := newRuntime(t, Options{})
	_, id := startContainer(t, r, podConfig("web-1", ""), containerConfig("web", "nginx"))
	for name, test := range map[string]struct {
		cmd    []string
		stdin  string
		tty    bool
		stdout string
		stderr string
		code   int
	}{
		"output":                {cmd: []string{"sh", "-c", "hostname; echo bad >&2; exit 4"}, stdout: "web-1\n", stderr: "bad\n", code: 4},
		"input":                 {cmd: []string{"cat"}, stdin: "typed", stdout: "typed"},
		"a shell with a script": {cmd: []string{"sh"}, stdin: "for i in 1 2\ndo echo $i\ndone\nexit 5\necho never", stdout: "1\n2\n", code: 5},
		"a terminal":            {cmd: []string{"sh"}, stdin: "echp\x7fo hi\rexit\r", tty: true, stdout: "/ # echp\b \bo hi\r\nexit\r\nhi\r\n/ # "},
		"its own web server":    {cmd: []string{"curl", "localhost/version"}, stdout: "latest\n"},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := r.Exec(t.Context(), &runtimeapi.ExecRequest{
				ContainerId: id, Cmd: test.cmd, Stdin: test.stdin != "", Stdout: true, Stderr: !test.tty, Tty: test.tty,
			})
			if err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			options := remotecommand.StreamOptions{Stdout: &stdout, Tty: test.tty}
			if test.stdin != "" {
				options.Stdin = strings.NewReader(test.stdin)
			}
			if !test.tty {
				options.Stderr = &stderr
			}
			err = streamFrom(t, response.Url, options)
			var exit utilexec.CodeExitError
			if errors.As(err, &exit) {
				err = nil
			}
			if err != nil || exit.Code != test.code || stdout.String() != test.stdout || stderr.String() != test.stderr {
				t.Errorf("got %q %q code %d, %v\nwant %q %q code %d", &stdout, &stderr, exit.Code, err, test.stdout, test.stderr, test.code)
			}
		})
	}
}

func TestAttachTalksToTheContainersShell(t *testing.T) {
	r := newRuntime(t, Options{})
	config := containerConfig("run", "busybox", "sh")
	config.Stdin, config.StdinOnce = true, true
	_, id := startContainer(t, r, podConfig("a", ""), config)
	response, err := r.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if err := streamFrom(t, response.Url, remotecommand.StreamOptions{Stdin: strings.NewReader("echo one\nexit 6\n"), Stdout: &stdout, Stderr: &stderr}); err != nil {
		t.Fatal(err)
	}
	waitEnded(t, r, id)
	if got := statusOf(t, r, id); stdout.String() != "one\n" || got.ExitCode != 6 {
		t.Errorf("stdout %q, exit code %d", &stdout, got.ExitCode)
	}
}

func TestAttachShowsOutputUntilTheEnd(t *testing.T) {
	r := newRuntime(t, Options{})
	_, id := startContainer(t, r, podConfig("a", ""), containerConfig("app", "busybox", "sh", "-c", "sleep 0.5; echo late; exit 1"))
	response, err := r.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: id, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if err := streamFrom(t, response.Url, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != "late\n" {
		t.Errorf("stdout = %q, want late", &stdout)
	}
}

func TestPortForward(t *testing.T) {
	r := newRuntime(t, Options{})
	box, _ := startContainer(t, r, podConfig("web-1", ""), containerConfig("web", "myrepo/web:1.0"))
	response, err := r.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: box})
	if err != nil {
		t.Fatal(err)
	}
	at, _ := url.Parse(response.Url)
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: at.Host})
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	defer close(stop)
	var errOut bytes.Buffer
	forwarder, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", at),
		[]string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, &errOut)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("port-forward ended: %v", err)
	case <-time.After(30 * time.Second):
		t.Fatal("port-forward never became ready")
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 20 * time.Second}
	for range 3 {
		local := &url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", portText(ports[0].Local)), Path: "/"}
		if code, body := fetch(t, client, "GET", local.String()); code != 200 || body != "web 1.0 on web-1\n" {
			t.Errorf("through the forward: %d %q", code, body)
		}
	}
}

func portText(port uint16) string { return strconv.Itoa(int(port)) }

package kubeletapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"
)

// protocols are the ways in which a client can ask for streams.
var protocols = map[string]func(*rest.Config, *url.URL) (remotecommand.Executor, error){
	"SPDY": func(c *rest.Config, at *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(c, "POST", at)
	},
	"WebSocket v5": func(c *rest.Config, at *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(c, "GET", at.String())
	},
}

func (w *world) url(path string, query url.Values) *url.URL {
	w.Helper()
	at, err := url.Parse(w.base)
	if err != nil {
		w.Fatal(err)
	}
	at.Path, at.RawQuery = path, query.Encode()
	return at
}

func TestExec(t *testing.T) {
	w := newWorld(t, nil)
	w.run("web", "nginx", v1.Container{})
	for protocol, executor := range protocols {
		for name, test := range map[string]struct {
			cmd    []string
			stdin  string
			tty    bool
			stdout string
			stderr string
			code   int
		}{
			"output and code":   {cmd: []string{"sh", "-c", "hostname; echo bad >&2; exit 4"}, stdout: "web\n", stderr: "bad\n", code: 4},
			"input to its end":  {cmd: []string{"cat"}, stdin: strings.Repeat("0123456789\n", 10_000), stdout: strings.Repeat("0123456789\n", 10_000)},
			"a shell on a tty":  {cmd: []string{"sh"}, stdin: "echo hi\rexit 3\r", tty: true, stdout: "/ # echo hi\r\nexit 3\r\nhi\r\n/ # ", code: 3},
			"arguments as they": {cmd: []string{"echo", "a b", "&c=d", "é"}, stdout: "a b &c=d é\n"},
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
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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
}

func TestAttach(t *testing.T) {
	for protocol, executor := range protocols {
		t.Run(protocol, func(t *testing.T) {
			w := newWorld(t, nil)
			w.run("run", "busybox", v1.Container{Command: []string{"sh"}, Stdin: true})
			streams, err := executor(w.restConfig(), w.url("/attach/default/run/app", url.Values{"input": {"1"}, "output": {"1"}, "error": {"1"}}))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var stdout, stderr bytes.Buffer
			if err := streams.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("echo attached\nexit\n"), Stdout: &stdout, Stderr: &stderr}); err != nil {
				t.Fatal(err)
			}
			if stdout.String() != "attached\n" {
				t.Errorf("stdout %q", &stdout)
			}
		})
	}
}

// TestExecOverRawWebSocket speaks the protocol of old clients: a byte of channel
// number before each message.
func TestExecOverRawWebSocket(t *testing.T) {
	w := newWorld(t, nil)
	w.run("web", "nginx", v1.Container{})
	at := w.url("/exec/default/web/app", url.Values{"output": {"1"}, "error": {"1"}, "command": {"sh", "-c", "echo out; exit 5"}})
	at.Scheme = "wss"
	dialer := websocket.Dialer{TLSClientConfig: w.authority.DialConfig("mend-apiserver", "system:masters"), Subprotocols: []string{"v4.channel.k8s.io"}, HandshakeTimeout: 30 * time.Second}
	conn, response, err := dialer.DialContext(t.Context(), at.String(), nil)
	if err != nil {
		t.Fatalf("%v, %v", err, response)
	}
	defer conn.Close()
	channels := map[byte]string{}
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		_, message, err := conn.ReadMessage()
		if err != nil {
			break
		}
		channels[message[0]] += string(message[1:])
	}
	if channels[1] != "out\n" || !strings.Contains(channels[3], `"message":"5"`) {
		t.Errorf("channels %q", channels)
	}
}

func TestStreamsThatCannotBe(t *testing.T) {
	w := newWorld(t, nil)
	id := w.run("web", "nginx", v1.Container{})
	w.run("ended", "nginx", v1.Container{})
	ended, _, _ := w.ContainerID("uid-ended", "app", false)
	w.runtime.Exit(ended, 0, "")
	admin := w.admin()
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/exec/default/web/app?command=true":                {400, "you must specify at least 1 of stdin, stdout, stderr"},
		"/exec/default/none/app?output=1&command=true":      {404, "pod does not exist"},
		"/exec/default/web/other/app?output=1&command=true": {404, "pod not found"},
		"/exec/default/web/none?output=1&command=true":      {500, `container not found ("none")`},
		"/exec/default/ended/app?output=1&command=true":     {500, `container not found ("app")`},
		"/exec/default/web/app?output=1&command=true":       {400, "Upgrade request required"},
		"/attach/default/ended/app?output=1":                {500, "container app not found in pod ended_default"},
		"/attach/default/web/app?output=1":                  {400, "Upgrade request required"},
		"/portForward/default/none":                         {404, "pod does not exist"},
		"/portForward/default/web/other":                    {404, "pod not found"},
		"/portForward/default/web":                          {400, "Upgrade request required"},
	} {
		if code, body := w.ask(admin, "POST", path); code != want.code || strings.TrimSpace(body) != want.body {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, want.code, want.body)
		}
	}
	delete(w.boxes, "uid-web")
	if code, body := w.ask(admin, "POST", "/portForward/default/web"); code != 500 || body != `pod not found ("web_default")` {
		t.Errorf("without a sandbox: %d %q", code, body)
	}
	if err := w.runtime.RemoveContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if code, body := w.ask(admin, "POST", "/exec/default/web/app?output=1&command=true"); code != 500 || body != `container not found ("app")` {
		t.Errorf("a container that is gone: %d %q", code, body)
	}
}

func TestPortForward(t *testing.T) {
	w := newWorld(t, nil)
	w.run("web", "myrepo/web:2.0", v1.Container{})
	testForwards(t, w, "8080", "web 2.0 on web\n")
}

// testForwards forwards two ports of Pod web, over each protocol: one that answers,
// and one on which nothing listens.
func testForwards(t *testing.T, w *world, port, answer string) {
	for protocol, dial := range map[string]func(*rest.Config, *url.URL) (httpstream.Dialer, error){
		"SPDY": func(c *rest.Config, at *url.URL) (httpstream.Dialer, error) {
			transport, upgrader, err := spdy.RoundTripperFor(c)
			if err != nil {
				return nil, err
			}
			return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", at), nil
		},
		"WebSocket tunnel": func(c *rest.Config, at *url.URL) (httpstream.Dialer, error) {
			return portforward.NewSPDYOverWebsocketDialer(at, c)
		},
	} {
		t.Run(protocol, func(t *testing.T) {
			dialer, err := dial(w.restConfig(), w.url("/portForward/default/web", nil))
			if err != nil {
				t.Fatal(err)
			}
			good, bad := forward(t, dialer, port)
			client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
			for range 3 {
				response, err := client.Get(good)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(response.Body)
				response.Body.Close()
				if string(body) != answer {
					t.Errorf("through the forward: %q, want %q", body, answer)
				}
			}
			if response, err := client.Get(bad); err == nil {
				response.Body.Close()
				t.Errorf("a port on which nothing listens answers %d", response.StatusCode)
			}
		})
	}
}

// forward returns the local addresses of a port and of port 9.
func forward(t *testing.T, dialer httpstream.Dialer, port string) (good, bad string) {
	t.Helper()
	stop, ready := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop) })
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:" + port, "0:9"}, stop, ready, io.Discard, io.Discard)
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
	address := func(i int) string {
		return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[i].Local)))
	}
	return address(0), address(1)
}

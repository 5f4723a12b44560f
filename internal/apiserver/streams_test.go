package apiserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	criportforward "k8s.io/cri-streaming/pkg/streaming/portforward"
	criremotecommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/utils/ptr"

	"mend/internal/apiserver"
	"mend/internal/pki"
	"mend/internal/testkit"
)

// agent answers like a node's agent: it echoes, and remembers what it was asked.
type agent struct {
	base  *url.URL
	dial  *http.Transport
	mu    sync.Mutex
	asked []string
}

func newAgent(t *testing.T, authority *pki.Authority) *agent {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{base: &url.URL{Scheme: "https", Host: listener.Addr().String()}}
	server := &http.Server{Handler: a, TLSConfig: authority.ServingConfig(pki.Serving{Hosts: []string{"127.0.0.1"}, RequireClient: true})}
	go server.ServeTLS(listener, "", "")
	t.Cleanup(func() { server.Close() })
	a.dial = &http.Transport{TLSClientConfig: authority.DialConfig("mend-apiserver", "system:masters")}
	return a
}

// Connect implements apiserver.KubeletConnector.
func (a *agent) Connect(_ context.Context, node string) (*url.URL, http.RoundTripper, error) {
	if node != "n1" {
		return nil, nil, errors.New("no route to host")
	}
	return a.base, a.dial, nil
}

func (a *agent) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, req.URL.Path+"?"+req.URL.Query().Encode()+" "+req.TLS.PeerCertificates[0].Subject.CommonName)
	a.mu.Unlock()
	switch strings.Split(req.URL.Path, "/")[1] {
	case "containerLogs":
		if req.URL.Query().Get("previous") == "true" {
			http.Error(w, `previous terminated container "web" in pod "a" not found`, http.StatusBadRequest)
			return
		}
		io.WriteString(w, "one\n")
		w.(http.Flusher).Flush()
		if req.URL.Query().Get("follow") == "true" {
			<-req.Context().Done()
		}
	case "exec":
		options, err := criremotecommand.NewOptions(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		criremotecommand.ServeExec(w, req, a, "a", "", "web", req.URL.Query()["command"], options, time.Minute, time.Minute, criremotecommand.SupportedStreamingProtocols)
	case "portForward":
		options, err := criportforward.NewV4Options(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		criportforward.ServePortForward(w, req, a, "a", "", options, time.Minute, time.Minute, criportforward.SupportedProtocols)
	default:
		fmt.Fprintf(w, "%s %s", req.Method, req.URL.Path)
	}
}

type exitError int

func (e exitError) Error() string   { return fmt.Sprint("exit ", int(e)) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) ExitStatus() int { return int(e) }
func (e exitError) Exited() bool    { return true }

// ExecInContainer echoes its input; "fail" ends with exit code 3.
func (a *agent) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan criremotecommand.TerminalSize, _ time.Duration) error {
	if cmd[0] == "fail" {
		return exitError(3)
	}
	fmt.Fprintf(out, "%s: ", strings.Join(cmd, " "))
	if in != nil {
		_, err := io.Copy(out, in)
		return err
	}
	return nil
}

// PortForward says what it read and on which port.
func (a *agent) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	text := make([]byte, 5)
	if _, err := io.ReadFull(stream, text); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%s on %d", text, port)
	return err
}

// startWithAgent runs Pod a on node n1, Pod far on n2 and Pod loose on none.
func startWithAgent(t *testing.T) (*testkit.APIServer, *agent, *rest.Config) {
	var a *agent
	s := testkit.StartAPIServer(t, testkit.Listening, func(_ testing.TB, c *apiserver.Config) {
		a = newAgent(t, c.PKI)
		c.Kubelets = a
	})
	ctx := testContext(t)
	for name, node := range map[string]string{"a": "n1", "far": "n2", "loose": ""} {
		p := pod(name)
		p.Spec.NodeName = node
		if _, err := s.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{"n1", "n2"} {
		if _, err := s.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	return s, a, config
}

func TestLogsComeFromTheNodesAgent(t *testing.T) {
	s, a, _ := startWithAgent(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	text, err := pods.GetLogs("a", &corev1.PodLogOptions{TailLines: ptr.To(int64(5)), Timestamps: true}).DoRaw(ctx)
	if err != nil || string(text) != "one\n" {
		t.Fatalf("%q, %v", text, err)
	}
	if diff := cmp.Diff([]string{"/containerLogs/default/a/web?tailLines=5&timestamps=true mend-apiserver"}, a.asked); diff != "" {
		t.Errorf("the agent was asked: %s", diff)
	}
	// Followed in process, line by line, until the reader has enough.
	stream, err := pods.GetLogs("a", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4)
	if _, err := io.ReadFull(stream, line); err != nil || string(line) != "one\n" {
		t.Errorf("followed: %q, %v", line, err)
	}
	stream.Close()
	for name, c := range map[string]struct {
		pod     string
		options corev1.PodLogOptions
		want    string
	}{
		"no such pod":         {"none", corev1.PodLogOptions{}, `pods "none" not found`},
		"no such container":   {"a", corev1.PodLogOptions{Container: "db"}, "container db is not valid for pod a"},
		"refused by agent":    {"a", corev1.PodLogOptions{Previous: true}, `previous terminated container "web" in pod "a" not found`},
		"node without way":    {"far", corev1.PodLogOptions{}, "node n2 cannot be reached: no route to host"},
		"a negative tail":     {"a", corev1.PodLogOptions{TailLines: ptr.To(int64(-1))}, "tailLines: Invalid value: -1"},
		"without a node: nil": {"loose", corev1.PodLogOptions{}, ""},
	} {
		err := pods.GetLogs(c.pod, &c.options).Do(ctx).Error()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// executors are the ways in which kubectl of this and older versions executes.
func executors(t *testing.T, s *testkit.APIServer, config *rest.Config, options *corev1.PodExecOptions) map[string]remotecommand.Executor {
	t.Helper()
	target := s.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("a").SubResource("exec").
		VersionedParams(options, scheme.ParameterCodec).URL()
	target.Scheme, target.Host = "https", strings.TrimPrefix(s.URL, "https://")
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", target.String())
	if err != nil {
		t.Fatal(err)
	}
	old, err := remotecommand.NewSPDYExecutor(config, "POST", target)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"WebSocket": socket, "SPDY": old}
}

func TestExecStreamsBothWays(t *testing.T) {
	s, _, config := startWithAgent(t)
	for name, e := range executors(t, s, config, &corev1.PodExecOptions{Command: []string{"cat", "-"}, Stdin: true, Stdout: true, Stderr: true}) {
		var out bytes.Buffer
		err := e.StreamWithContext(testContext(t), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: io.Discard})
		if err != nil || out.String() != "cat -: hello" {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
	}
	for name, e := range executors(t, s, config, &corev1.PodExecOptions{Command: []string{"fail"}, Stdout: true}) {
		err := e.StreamWithContext(testContext(t), remotecommand.StreamOptions{Stdout: io.Discard})
		var code exec.CodeExitError
		if !errors.As(err, &code) || code.Code != 3 {
			t.Errorf("%s: exit code: %v", name, err)
		}
	}
}

func TestWhoMayOnlyReadMayNotExecute(t *testing.T) {
	s, _, _ := startWithAgent(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig(t, "eve", "dev"))
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range executors(t, s, config, &corev1.PodExecOptions{Command: []string{"cat"}, Stdout: true}) {
		if err := e.StreamWithContext(testContext(t), remotecommand.StreamOptions{Stdout: io.Discard}); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPortForwardCarriesConnections(t *testing.T) {
	s, _, config := startWithAgent(t)
	target := &url.URL{Scheme: "https", Host: strings.TrimPrefix(s.URL, "https://"), Path: "/api/v1/namespaces/default/pods/a/portforward"}
	roundTripper, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, config)
	if err != nil {
		t.Fatal(err)
	}
	dialers := map[string]httpstream.Dialer{
		"WebSocket": socket,
		"SPDY":      spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: roundTripper}, "POST", target),
	}
	for name, dialer := range dialers {
		stop, ready := make(chan struct{}), make(chan struct{})
		forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatalf("%s: %v", name, err)
		}
		ports, err := forwarder.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "hello")
		answer, err := io.ReadAll(conn)
		if err != nil || string(answer) != "hello on 8080" {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
		close(stop)
		<-ended
	}
}

func TestProxiesReachAgentsPodsAndServicesAndNothingElse(t *testing.T) {
	s, a, _ := startWithAgent(t)
	ctx := testContext(t)
	get := func(path string) (string, error) {
		answer := s.Client.CoreV1().RESTClient().Get().AbsPath(path).Do(ctx)
		text, err := answer.Raw()
		if err != nil {
			err = answer.Error() // reads the status in the body
		}
		return string(text), err
	}
	if text, err := get("/api/v1/nodes/n1/proxy/stats/summary"); err != nil || text != "GET /stats/summary" {
		t.Errorf("node: %q, %v", text, err)
	}
	if text, err := get("/api/v1/nodes/n1:" + a.base.Port() + "/proxy/pods"); err != nil || text != "GET /pods" {
		t.Errorf("node with its port: %q, %v", text, err)
	}
	// An address of this machine is not a Pod's, whatever a status says.
	patch := `{"status":{"phase":"Running","podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}}`
	if _, err := s.Client.CoreV1().Pods("default").Patch(ctx, "a", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/v1/nodes/n1:1/proxy/", "/api/v1/namespaces/default/pods/a:" + a.base.Port() + "/proxy/", "/api/v1/namespaces/default/pods/loose/proxy/"} {
		if _, err := get(path); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "address not allowed") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := s.Client.CoreV1().Services("default").Create(ctx, service("web"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}}, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(80))}},
	}
	if _, err := s.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/api/v1/namespaces/default/services/web/proxy/":      `no endpoints available for service "web"`,
		"/api/v1/namespaces/default/services/web:http/proxy/": `no endpoints available for service "web"`, // the endpoint is no Pod
		"/api/v1/namespaces/default/services/web:81/proxy/":   `no service port 81 found for service "web"`,
		"/api/v1/namespaces/default/services/none:80/proxy/":  `services "none" not found`,
		"/api/v1/nodes/n3/proxy/":                             `nodes "n3" not found`,
	} {
		if _, err := get(path); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

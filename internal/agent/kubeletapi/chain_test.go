package kubeletapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"

	"mend/internal/apiserver"
	"mend/internal/testkit"
)

// connector leads every node to the world's server.
type connector struct{ w *world }

func (c *connector) Connect(context.Context, string) (*url.URL, http.RoundTripper, error) {
	at, err := url.Parse(c.w.base)
	return at, &http.Transport{TLSClientConfig: c.w.authority.DialConfig("mend-apiserver", "system:masters")}, err
}

// TestThroughTheAPIServer does what kubectl does: the API server stands between the
// client and the node.
func TestThroughTheAPIServer(t *testing.T) {
	w := newWorld(t, nil)
	w.run("web", "nginx", v1.Container{})
	s := testkit.StartAPIServer(t, testkit.Listening, func(_ testing.TB, c *apiserver.Config) { c.Kubelets = &connector{w} })
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if _, err := s.Client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "app", Image: "nginx"}}}}
	if _, err := s.Client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	at := func(subresource string, query url.Values) *url.URL {
		found := client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("web").SubResource(subresource).URL()
		found.RawQuery = query.Encode()
		return found
	}
	for protocol, executor := range protocols {
		var stdout, stderr bytes.Buffer
		streams, err := executor(config, at("exec", url.Values{"container": {"app"}, "command": {"sh", "-c", "hostname; exit 4"}, "stdout": {"true"}, "stderr": {"true"}}))
		if err != nil {
			t.Fatal(err)
		}
		err = streams.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
		var exit clientexec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 4 || stdout.String() != "web\n" {
			t.Errorf("exec over %s: %q %q %v", protocol, &stdout, &stderr, err)
		}
	}
	testLogThroughServer(t, ctx, client)
	dialer, err := portforward.NewSPDYOverWebsocketDialer(at("portforward", nil), config)
	if err != nil {
		t.Fatal(err)
	}
	good, _ := forward(t, dialer, "80")
	response, err := http.Get(good)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); string(body) != "web latest on web\n" {
		t.Errorf("port-forward: %q", body)
	}
	if text, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name("n1").SubResource("proxy").Suffix("healthz").DoRaw(ctx); err != nil || string(text) != "ok" {
		t.Errorf("nodes/proxy: %q %v", text, err)
	}
}

func testLogThroughServer(t *testing.T, ctx context.Context, client kubernetes.Interface) {
	t.Helper()
	stream, err := client.CoreV1().Pods("default").GetLogs("web", &v1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	first := make([]byte, 3)
	if _, err := io.ReadFull(stream, first); err != nil || string(first) != "web" {
		t.Errorf("followed log begins with %q, %v", first, err)
	}
	_, err = client.CoreV1().Pods("default").GetLogs("web", &v1.PodLogOptions{Previous: true}).Stream(ctx)
	if err == nil || err.Error() != `container "app" in pod "web" is not available` {
		t.Errorf("previous: %v", err)
	}
}

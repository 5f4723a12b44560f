package kubeletapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/pki"
	"mend/internal/runtime/sim"
)

// world is the API of a node with simulated or real containers.
type world struct {
	*testing.T
	cri       internalapi.RuntimeService
	runtime   *sim.Runtime // nil if the containers are real
	authority *pki.Authority
	server    *Server
	base      string // https://127.0.0.1:port
	dir       string
	cgroup    string
	end       func() // ends Serve and waits for it
	configs   map[types.UID]*runtimeapi.PodSandboxConfig

	mu         sync.Mutex
	list       []*v1.Pod
	boxes      map[types.UID]string
	containers map[string][]string // uid/name → ids, oldest first
	paths      map[string]string
}

func (w *world) PodByName(namespace, name string) (*v1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.IndexFunc(w.list, func(p *v1.Pod) bool { return p.Namespace == namespace && p.Name == name })
	if at < 0 {
		return nil, false
	}
	return w.list[at], true
}

func (w *world) ContainerID(uid types.UID, container string, previous bool) (string, string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := w.containers[string(uid)+"/"+container]
	at := len(ids) - 1
	if previous {
		at--
	}
	if at < 0 {
		return "", "", false
	}
	return ids[at], w.paths[ids[at]], true
}

func (w *world) SandboxID(uid types.UID) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, ok := w.boxes[uid]
	return id, ok
}

func (w *world) Pods() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

// newWorld has simulated containers.
func newWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	runtime := sim.New(sim.Options{})
	t.Cleanup(runtime.Stop)
	w := serveWorld(t, runtime, runtime, change)
	w.runtime = runtime
	return w
}

// serveWorld serves on a loopback port until the test ends.
func serveWorld(t *testing.T, runtime internalapi.RuntimeService, images internalapi.ImageManagerService, change func(*Config)) *world {
	t.Helper()
	authority, err := pki.Open(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		T: t, cri: runtime, authority: authority, dir: t.TempDir(),
		configs: map[types.UID]*runtimeapi.PodSandboxConfig{},
		boxes:   map[types.UID]string{}, containers: map[string][]string{}, paths: map[string]string{},
	}
	config := Config{
		NodeName: "n1", Pods: w, Runtime: runtime, Images: images,
		TLS: authority.ServingConfig(pki.Serving{Name: "n1", Hosts: []string{"127.0.0.1"}, RequireClient: true}),
	}
	if change != nil {
		change(&config)
	}
	if w.server, err = New(config); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.base = "https://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx, listener) }()
	w.end = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Serve did not end")
		}
	})
	t.Cleanup(w.end)
	return w
}

// run starts a Pod with one container and returns the container's id.
func (w *world) run(name, image string, container v1.Container) string {
	w.Helper()
	container.Name, container.Image = "app", image
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{container}},
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: string(pod.UID)},
		Hostname:     name,
		LogDirectory: w.dir + "/" + name,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: w.cgroup},
	}
	box, err := w.cri.RunPodSandbox(w.Context(), config, "")
	if err != nil {
		w.Fatal(err)
	}
	w.mu.Lock()
	w.list = append(w.list, pod)
	w.boxes[pod.UID] = box
	w.mu.Unlock()
	w.configs[pod.UID] = config
	return w.start(pod, 0)
}

// start runs the Pod's container, again if it has run.
func (w *world) start(pod *v1.Pod, attempt uint32) string {
	w.Helper()
	ctx := w.Context()
	spec, config := pod.Spec.Containers[0], w.configs[pod.UID]
	image := &runtimeapi.ImageSpec{Image: spec.Image}
	if w.runtime != nil {
		if _, err := w.runtime.PullImage(ctx, image, nil, nil); err != nil {
			w.Fatal(err)
		}
	}
	id, err := w.cri.CreateContainer(ctx, w.boxes[pod.UID], &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: spec.Name, Attempt: attempt},
		Image:    image, Command: spec.Command, Stdin: spec.Stdin, Tty: spec.TTY,
		LogPath: spec.Name + "/" + string(rune('0'+attempt)) + ".log",
	}, config)
	if err != nil {
		w.Fatal(err)
	}
	if err := w.cri.StartContainer(ctx, id); err != nil {
		w.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(pod.UID) + "/" + spec.Name
	w.containers[key] = append(w.containers[key], id)
	return id
}

// client authenticates as a member of the groups.
func (w *world) client(groups ...string) *http.Client {
	transport := &http.Transport{TLSClientConfig: w.authority.DialConfig("mend-apiserver", groups...)}
	w.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 60 * time.Second}
}

// ask sends a request and returns the answer's code and text.
func (w *world) ask(client *http.Client, method, path string) (int, string) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), method, w.base+path, nil)
	if err != nil {
		w.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		w.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.Fatalf("%s %s: %v", method, path, err)
	}
	return response.StatusCode, string(body)
}

func (w *world) admin() *http.Client { return w.client("system:masters") }

// restConfig is for client-go's streams.
func (w *world) restConfig() *rest.Config {
	w.Helper()
	cert, key, err := w.authority.ClientCert("mend-apiserver", []string{"system:masters"}, time.Hour)
	if err != nil {
		w.Fatal(err)
	}
	return &rest.Config{Host: w.base, TLSClientConfig: rest.TLSClientConfig{CertData: cert, KeyData: key, CAData: w.authority.CAPEM()}}
}

// eventually polls a condition that other goroutines bring about.
func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-deadline:
			w.Fatalf("never: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

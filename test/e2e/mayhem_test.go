package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	cri "k8s.io/cri-client/pkg"
)

// What the tests share that kill things.

// freePort is a port for an API that keeps its address over restarts.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// seeded gives the randomness of a test and logs what repeats it.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("MEND_E2E_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MEND_E2E_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// pause lets a random moment pass, so that what follows hits anywhere.
func pause(random *rand.Rand, most time.Duration) {
	<-time.After(time.Duration(random.Int64N(int64(most))))
}

// mendPID is the process that the lock names.
func (c *cluster) mendPID() int {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.data(), "lock"))
	if err != nil {
		c.t.Fatal(err)
	}
	var holder struct{ PID int }
	if err := json.Unmarshal(text, &holder); err != nil || holder.PID <= 1 {
		c.t.Fatalf("the lock holds %q (%v)", text, err)
	}
	return holder.PID
}

// signal sends a signal to a process that this test started and waits for its end.
func (c *cluster) signal(pid int, signal unix.Signal) {
	c.t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		c.t.Fatalf("process %d: %v", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil {
		c.t.Fatalf("signal %d to process %d: %v", signal, pid, err)
	}
	deadline := time.Now().Add(stateLimit)
	for time.Now().Before(deadline) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if n > 0 {
			return
		}
		if err != nil && err != unix.EINTR {
			c.t.Fatal(err)
		}
	}
	c.t.Fatalf("process %d does not end on signal %d", pid, signal)
}

// facts are what must not change in a Pod at rest.
type facts struct {
	UID        string
	Containers string // ids and restart counts
	Ready      string // the condition and since when it holds
	IP         string
}

// resting reads the facts of all Pods with a label, by name.
func (c *cluster) resting(selector string) map[string]facts {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		c.t.Fatal(err)
	}
	found := map[string]facts{}
	for i := range list.Items {
		pod := &list.Items[i]
		one := facts{UID: string(pod.UID), IP: pod.Status.PodIP}
		for _, status := range pod.Status.ContainerStatuses {
			one.Containers += fmt.Sprintf("%s %s %d;", status.Name, status.ContainerID, status.RestartCount)
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady {
				one.Ready = fmt.Sprintf("%s since %s", condition.Status, condition.LastTransitionTime.UTC().Format(time.RFC3339))
			}
		}
		found[pod.Name] = one
	}
	return found
}

// sameFacts reports every Pod that is not as it was.
func sameFacts(t *testing.T, when string, before, after map[string]facts) {
	t.Helper()
	for name, was := range before {
		if is, ok := after[name]; !ok || is != was {
			t.Errorf("%s: Pod %s was %+v, is %+v", when, name, was, is)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s: Pod %s is new", when, name)
		}
	}
}

// writer writes ConfigMaps one after another, as fast as they are acknowledged
// but no faster than every pace, and remembers what was acknowledged. Each of the
// slots holds the number of the last write to it, so that a slot's value never
// falls behind an acknowledged one.
type writer struct {
	c     *cluster
	slots int
	pace  time.Duration

	mu           sync.Mutex
	acknowledged []int
	writes       int

	stop, stopped chan struct{}
}

func (c *cluster) startWriter(slots int, pace time.Duration) *writer {
	w := &writer{c: c, slots: slots, pace: pace, acknowledged: make([]int, slots), stop: make(chan struct{}), stopped: make(chan struct{})}
	go w.run()
	c.t.Cleanup(w.end)
	return w
}

func (w *writer) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	<-w.stopped
}

func (w *writer) run() {
	defer close(w.stopped)
	ticker := time.NewTicker(w.pace)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-w.stop:
			return
		case <-ticker.C:
		}
		if w.write(n) == nil {
			w.mu.Lock()
			w.acknowledged[n%w.slots] = n
			w.writes++
			w.mu.Unlock()
		}
	}
}

// write creates or replaces the slot of write n. An error means that nobody knows
// whether it happened, which is no promise.
func (w *writer) write(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slot-%d", n%w.slots), Labels: map[string]string{"of": "writer"}},
		Data:       map[string]string{"n": strconv.Itoa(n)},
	}
	maps := w.c.client.CoreV1().ConfigMaps("default")
	_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, object, metav1.CreateOptions{})
	}
	return err
}

// check compares what was acknowledged before now with what the API holds.
func (w *writer) check(t *testing.T, when string) {
	t.Helper()
	w.mu.Lock()
	acknowledged := slices.Clone(w.acknowledged)
	w.mu.Unlock()
	list, err := w.c.client.CoreV1().ConfigMaps("default").List(context.Background(), metav1.ListOptions{LabelSelector: "of=writer"})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	found := map[string]int{}
	for i := range list.Items {
		found[list.Items[i].Name], _ = strconv.Atoi(list.Items[i].Data["n"])
	}
	for slot, n := range acknowledged {
		if name := fmt.Sprintf("slot-%d", slot); found[name] < n {
			t.Errorf("%s: write %d to %s was acknowledged, and %s holds write %d", when, n, name, name, found[name])
		}
	}
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}

// awaitAPI returns how long the API took from since on to answer a consistent read.
func (c *cluster) awaitAPI(since time.Time) time.Duration {
	c.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(stateLimit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := c.client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		cancel()
		if err == nil {
			return time.Since(since)
		}
		select {
		case <-ticker.C:
		case <-deadline:
			c.t.Fatalf("the API does not answer within %s: %v", stateLimit, err)
		}
	}
}

// componentMessage is what mend status says about a part.
func (c *cluster) component(name string) (message string, healthy bool) {
	c.t.Helper()
	for _, component := range c.status().Components {
		if component.Name == name {
			return component.Message, component.Healthy
		}
	}
	c.t.Fatalf("mend status does not name %s", name)
	return "", false
}

// statusOfMend is the part of mend status --json that the tests read.
type statusOfMend struct {
	Components []struct {
		Name, Message string
		Healthy       bool
	}
	Paths map[string]string
}

func (c *cluster) status() statusOfMend {
	c.t.Helper()
	got := c.run("status", "--json", "--data-dir", c.data())
	var status statusOfMend
	if err := json.Unmarshal([]byte(got.out), &status); err != nil {
		c.t.Fatalf("mend status: %v: %+v", err, got)
	}
	return status
}

// runtime is a CRI client of our own to the containerd of this cluster, which may just be
// starting. It stays open: each connection costs containerd memory.
func (c *cluster) runtime() internalapi.RuntimeService {
	c.t.Helper()
	socket := "unix://" + c.status().Paths["runtime socket"]
	if c.cri != nil && c.criSocket == socket {
		return c.cri
	}
	c.eventually("containerd", func() string {
		client, err := cri.NewRemoteRuntimeService(context.Background(), socket, 10*time.Second, nil, false)
		if err != nil {
			return err.Error()
		}
		c.cri, c.criSocket = client, socket
		c.t.Cleanup(func() { _ = client.Close(context.Background()) })
		return ""
	})
	return c.cri
}

// eachRunsOnce compares the runtime with the API: every Pod of the API has one
// sandbox that is ready and each of its containers runs once; nothing else is ready
// or runs.
func (c *cluster) eachRunsOnce() string {
	c.t.Helper()
	ctx := context.Background()
	client := c.runtime()
	pods, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	sandboxes, err := client.ListPodSandbox(ctx, nil)
	if err != nil {
		return err.Error()
	}
	containers, err := client.ListContainers(ctx, nil)
	if err != nil {
		return err.Error()
	}
	running := map[string]int{}
	for _, sandbox := range sandboxes {
		if sandbox.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			running[sandbox.Metadata.Uid]++
		}
	}
	for _, container := range containers {
		if container.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			running[container.Labels["io.kubernetes.pod.uid"]+"/"+container.Metadata.Name]++
		}
	}
	var faults []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		keys := []string{string(pod.UID)}
		for _, container := range pod.Spec.Containers {
			keys = append(keys, string(pod.UID)+"/"+container.Name)
		}
		for _, key := range keys {
			if running[key] != 1 {
				faults = append(faults, fmt.Sprintf("Pod %s: %s is there %d times", pod.Name, key, running[key]))
			}
			delete(running, key)
		}
	}
	for key, n := range running {
		faults = append(faults, fmt.Sprintf("orphan %s, %d times", key, n))
	}
	return strings.Join(faults, "; ")
}

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis"

	"mend/internal/agent"
	"mend/internal/runtime/containerd"
	"mend/internal/runtime/sim"
	"mend/internal/testkit"
)

const nodeName = "node-1"

// world is an API server with one agent on a container runtime.
type world struct {
	t       testing.TB
	client  kubernetes.Interface
	server  *testkit.APIServer
	sim     *sim.Runtime // nil where containers are real
	runtime cri.RuntimeService
	// supervisor watches the real containerd.
	supervisor *containerd.Supervisor
	config     agent.Config
	agent      *agent.Agent
	stop       func()
}

func newWorld(t testing.TB, rules ...sim.Rule) *world {
	t.Helper()
	return newWorldWith(t, func(*agent.Config) {}, rules...)
}

func newWorldWith(t testing.TB, change func(*agent.Config), rules ...sim.Rule) *world {
	t.Helper()
	runtime := sim.New(sim.Options{Behaviour: sim.DefaultBehaviour().WithRules(rules...), Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(runtime.Stop)
	dir := t.TempDir()
	w := &world{t: t, sim: runtime, runtime: runtime, config: agent.Config{
		Runtime: runtime, Images: runtime, DataDir: dir, LogDir: dir + "/pod-logs", Simulated: true, NodeIP: "192.0.2.10", ProbeDial: runtime.Dial,
	}}
	change(&w.config)
	w.serve()
	return w
}

// serve starts the API server and the first agent.
func (w *world) serve() {
	w.t.Helper()
	w.server = testkit.StartAPIServer(w.t)
	w.client = w.server.Client
	w.start()
	w.t.Cleanup(func() { w.stop() })
}

// start runs an agent; stop ends it and leaves the containers running.
func (w *world) start() {
	w.t.Helper()
	client, err := w.server.Server.Client("system:node:"+nodeName, "system:nodes", "system:masters")
	if err != nil {
		w.t.Fatal(err)
	}
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() && os.Getenv("AGENT_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	w.config.NodeName, w.config.Client, w.config.ClusterDomain, w.config.Log = nodeName, client, "cluster.local", log
	w.config.Events = events.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: nodeName})
	if w.agent, err = agent.New(w.config); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.agent.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("agent: %v", err)
		}
		events.Shutdown()
		w.stop = func() {}
	}
}

// pod makes a Pod that is bound already.
func pod(name string, change ...func(*v1.Pod)) *v1.Pod {
	none, grace := false, int64(5)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{
			NodeName: nodeName, AutomountServiceAccountToken: &none, TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{{Name: "web", Image: "mend.local/web:1.0"}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func (w *world) create(p *v1.Pod) *v1.Pod {
	w.t.Helper()
	made, err := w.client.CoreV1().Pods(p.Namespace).Create(context.Background(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

func (w *world) get(name string) (*v1.Pod, error) {
	return w.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
}

// until waits for a Pod to look as check wants and returns it.
func (w *world) until(name, what string, check func(*v1.Pod) bool) *v1.Pod {
	w.t.Helper()
	var last *v1.Pod
	testkit.WaitFor(w.t, fmt.Sprintf("%s: %s", name, what), func() error {
		p, err := w.get(name)
		if err != nil {
			return err
		}
		last = p
		if !check(p) {
			return fmt.Errorf("status is %+v", p.Status)
		}
		return nil
	})
	return last
}

func (w *world) untilGone(name string) {
	w.t.Helper()
	testkit.WaitFor(w.t, name+" to be gone", func() error {
		p, err := w.get(name)
		if err == nil {
			return fmt.Errorf("it is there: %+v", p.Status)
		}
		return nil
	})
}

func waiting(p *v1.Pod) *v1.ContainerStateWaiting {
	if len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return p.Status.ContainerStatuses[0].State.Waiting
}

func waitsFor(reason string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool { w := waiting(p); return w != nil && w.Reason == reason }
}

// untilEvents waits until the events of a Pod hold all of these, each written as
// "Type Reason part of the message".
func (w *world) untilEvents(uid types.UID, want ...string) {
	w.t.Helper()
	testkit.WaitFor(w.t, "events", func() error {
		list, err := w.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{
			FieldSelector: "involvedObject.uid=" + string(uid)})
		if err != nil {
			return err
		}
		var have []string
		for _, e := range list.Items {
			have = append(have, fmt.Sprintf("%s %s %s | %s %s", e.Type, e.Reason, e.Message, e.Source.Component, e.InvolvedObject.FieldPath))
		}
		for _, wanted := range want {
			found := false
			for _, h := range have {
				found = found || strings.HasPrefix(h, wanted)
			}
			if !found {
				return fmt.Errorf("%q is not among\n%s", wanted, strings.Join(have, "\n"))
			}
		}
		return nil
	})
}

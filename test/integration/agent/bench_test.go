package agent

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/agent"
)

// watchPod calls back at each change of a Pod until it returns true.
func (w *world) watchPod(name string, done func(*v1.Pod) bool) time.Time {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), realLimit)
	defer cancel()
	changes, err := w.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		w.t.Fatal(err)
	}
	defer changes.Stop()
	for e := range changes.ResultChan() {
		if p, ok := e.Object.(*v1.Pod); ok && e.Type != watch.Deleted && done(p) {
			return time.Now()
		}
	}
	w.t.Fatalf("%s did not get there", name)
	return time.Time{}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkRealPod times, on real containers, a Pod from its creation (bound) to
// Ready, and a container from its death to Running, beside three raw calls of the
// runtime: sandbox, create, start.
func BenchmarkRealPod(b *testing.B) {
	w := newRealWorld(b)
	var raw, up, again []time.Duration
	for i := range b.N {
		name := fmt.Sprintf("web-%d", i)
		raw = append(raw, w.rawPod(i))
		began := time.Now()
		w.create(pod(name))
		up = append(up, w.watchPod(name, podutil.IsPodReady).Sub(began))
		p, err := w.get(name)
		if err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if err := syscall.Kill(w.pidOf(p), syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		again = append(again, w.watchPod(name, func(p *v1.Pod) bool { return podutil.IsPodReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 }).Sub(began))
		w.delete(name)
		w.untilGone(name)
	}
	b.ReportMetric(float64(median(raw).Milliseconds()), "ms-raw")
	b.ReportMetric(float64(median(up).Milliseconds()), "ms-ready")
	b.ReportMetric(float64(median(again).Milliseconds()), "ms-restart")
}

// rawPod runs a Pod by three raw calls.
func (w *world) rawPod(i int) time.Duration {
	w.t.Helper()
	ctx := context.Background()
	name := fmt.Sprintf("raw-%d", i)
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "raw", Uid: name},
		Hostname:     name,
		LogDirectory: w.config.LogDir,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: w.config.CgroupParent + "/" + name},
	}
	began := time.Now()
	box, err := w.runtime.RunPodSandbox(ctx, config, "")
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.runtime.CreateContainer(ctx, box, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"}, Image: &runtimeapi.ImageSpec{Image: "mend.local/web:1.0"},
		LogPath: name + ".log", Linux: &runtimeapi.LinuxContainerConfig{},
	}, config)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.runtime.StartContainer(ctx, c); err != nil {
		w.t.Fatal(err)
	}
	took := time.Since(began)
	if err := w.runtime.StopPodSandbox(ctx, box); err != nil {
		w.t.Fatal(err)
	}
	if err := w.runtime.RemovePodSandbox(ctx, box); err != nil {
		w.t.Fatal(err)
	}
	return took
}

// BenchmarkManyPods times Pods on a simulated node from creation (bound) until
// all are Ready.
func BenchmarkManyPods(b *testing.B) {
	w := newWorldWith(b, func(c *agent.Config) {
		c.MaxPods = 1_000_000
		c.Capacity = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1k"), v1.ResourceMemory: resource.MustParse("1Ti")}
	})
	b.ResetTimer()
	for i := range b.N {
		w.create(pod(fmt.Sprintf("p-%d", i)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for ready := 0; ready < b.N; {
		list, err := w.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			b.Fatal(err)
		}
		ready = 0
		for i := range list.Items {
			if podutil.IsPodReady(&list.Items[i]) {
				ready++
			}
		}
	}
}

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkThreeCalls times what CRI needs for a Pod with one container: the floor of a
// heal. It reports the median of each call, with ten Pods running beside.
func BenchmarkThreeCalls(b *testing.B) {
	w := newWorld(b)
	w.start()
	w.importBuiltin()
	for i := range 10 {
		w.runPod(w.sandboxConfig(fmt.Sprintf("beside-%d", i)), "mend.local/web:1.0")
	}
	var sandboxTimes, createTimes, startTimes, sums []time.Duration
	for i := 0; b.Loop(); i++ {
		ctx, config := w.context(), w.sandboxConfig(fmt.Sprintf("pod-%d", i))
		t0 := time.Now()
		sandbox, err := w.runtime.RunPodSandbox(ctx, config, "")
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		container, err := w.runtime.CreateContainer(ctx, sandbox, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
			Image:    &runtimeapi.ImageSpec{Image: "mend.local/web:1.0"},
			LogPath:  "web.log",
			Linux:    &runtimeapi.LinuxContainerConfig{},
		}, config)
		if err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		if err := w.runtime.StartContainer(ctx, container); err != nil {
			b.Fatal(err)
		}
		t3 := time.Now()
		sandboxTimes, createTimes = append(sandboxTimes, t1.Sub(t0)), append(createTimes, t2.Sub(t1))
		startTimes, sums = append(startTimes, t3.Sub(t2)), append(sums, t3.Sub(t0))
		if err := w.runtime.StopPodSandbox(ctx, sandbox); err != nil {
			b.Fatal(err)
		}
		if err := w.runtime.RemovePodSandbox(ctx, sandbox); err != nil {
			b.Fatal(err)
		}
	}
	for name, times := range map[string][]time.Duration{"sandbox": sandboxTimes, "create": createTimes, "start": startTimes, "all": sums} {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, name+"-ms")
	}
	b.ReportMetric(float64(sums[len(sums)-1].Microseconds())/1000, "worst-ms")
}

// BenchmarkStart times a start with an empty data directory: unpacking, containerd
// until CRI answers, and the import of the built-in images. It reports containerd's
// memory, idle, in MiB.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		w := newWorld(b)
		t0 := time.Now()
		w.start()
		t1 := time.Now()
		w.importBuiltin()
		t2 := time.Now()
		b.ReportMetric(float64(t1.Sub(t0).Milliseconds()), "ready-ms")
		b.ReportMetric(float64(t2.Sub(t1).Milliseconds()), "images-ms")
		b.ReportMetric(memory(b, w.sup.PID(), "VmRSS"), "rss-MiB")
		b.ReportMetric(memory(b, w.sup.PID(), "RssAnon"), "anon-MiB")
		b.ReportMetric(memory(b, os.Getpid(), "RssFile"), "own-file-MiB")
		w.purge()
	}
}

// memory is a line of /proc/PID/status in MiB.
func memory(t testing.TB, pid int, key string) float64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Fields(between(string(b), key+":", "kB"))
	if len(text) != 1 {
		t.Fatalf("no %s in the status of process %d", key, pid)
	}
	kib, err := strconv.ParseFloat(text[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

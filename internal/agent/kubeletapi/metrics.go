package kubeletapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// summary is /stats/summary. With ?only_cpu_and_memory=true the rest is left out.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	made, err := s.usage.summary(r.Context())
	if err != nil {
		refuse(w, http.StatusInternalServerError, "%v", err)
		return
	}
	if r.URL.Query().Get("only_cpu_and_memory") == "true" {
		onlyCPUAndMemory(made)
	}
	text, err := json.MarshalIndent(made, "", " ")
	if err != nil {
		refuse(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.write(w, text)
}

func onlyCPUAndMemory(made *stats.Summary) {
	made.Node.Fs, made.Node.Runtime, made.Node.Network = nil, nil, nil
	for i := range made.Pods {
		pod := &made.Pods[i]
		pod.Network, pod.EphemeralStorage, pod.VolumeStats, pod.ProcessStats = nil, nil, nil, nil
		for j := range pod.Containers {
			pod.Containers[j].Rootfs, pod.Containers[j].Logs = nil, nil
		}
	}
}

func described(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Metrics of /metrics/resource, under kubelet's names.
var (
	nodeCPU         = described("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds")
	nodeMemory      = described("node_memory_working_set_bytes", "Current working set of the node in bytes")
	containerCPU    = described("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", "container", "pod", "namespace")
	containerMemory = described("container_memory_working_set_bytes", "Current working set of the container in bytes", "container", "pod", "namespace")
	containerSwap   = described("container_swap_usage_bytes", "Current amount of the container swap usage in bytes. Reported only on non-windows systems", "container", "pod", "namespace")
	containerStart  = described("container_start_time_seconds", "Start time of the container since unix epoch in seconds", "container", "pod", "namespace")
	podCPU          = described("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", "pod", "namespace")
	podMemory       = described("pod_memory_working_set_bytes", "Current working set of the pod in bytes", "pod", "namespace")
	scrapeError     = described("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise")
	oldScrapeError  = described("scrape_error", "1 if there was an error while getting container metrics, 0 otherwise")
)

// resourceMetrics is /metrics/resource, which metrics-server reads. Each request looks
// anew, with its own context.
func (s *Server) resourceMetrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		registry := prometheus.NewRegistry()
		if err := registry.Register(&resources{ctx: r.Context(), server: s}); err != nil {
			refuse(w, http.StatusInternalServerError, "%v", err)
			return
		}
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
	})
}

// resources collects for one request.
type resources struct {
	ctx    context.Context
	server *Server
}

// Describe sends nothing: the collector is unchecked and lives for one request.
func (c *resources) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *resources) Collect(out chan<- prometheus.Metric) {
	made, err := c.server.usage.summary(c.ctx)
	failed := 0.0
	if err != nil {
		failed = 1
		c.server.config.Log.Error("resource metrics not collected", "err", err)
	}
	out <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, failed)
	out <- prometheus.MustNewConstMetric(oldScrapeError, prometheus.GaugeValue, failed)
	if err != nil {
		return
	}
	sendCPU(out, nodeCPU, made.Node.CPU)
	sendMemory(out, nodeMemory, made.Node.Memory)
	for i := range made.Pods {
		pod := &made.Pods[i]
		sendCPU(out, podCPU, pod.CPU, pod.PodRef.Name, pod.PodRef.Namespace)
		sendMemory(out, podMemory, pod.Memory, pod.PodRef.Name, pod.PodRef.Namespace)
		for j := range pod.Containers {
			sendContainer(out, &pod.Containers[j], pod.PodRef)
		}
	}
}

func sendContainer(out chan<- prometheus.Metric, s *stats.ContainerStats, pod stats.PodReference) {
	labels := []string{s.Name, pod.Name, pod.Namespace}
	sendCPU(out, containerCPU, s.CPU, labels...)
	sendMemory(out, containerMemory, s.Memory, labels...)
	if s.Swap != nil && s.Swap.SwapUsageBytes != nil {
		send(out, containerSwap, prometheus.GaugeValue, s.Swap.Time, float64(*s.Swap.SwapUsageBytes), labels...)
	}
	if s.StartTime.Unix() > 0 {
		out <- prometheus.MustNewConstMetric(containerStart, prometheus.GaugeValue,
			float64(s.StartTime.UnixNano())/float64(time.Second), labels...)
	}
}

func sendCPU(out chan<- prometheus.Metric, as *prometheus.Desc, s *stats.CPUStats, labels ...string) {
	if s != nil && s.UsageCoreNanoSeconds != nil {
		send(out, as, prometheus.CounterValue, s.Time, float64(*s.UsageCoreNanoSeconds)/float64(time.Second), labels...)
	}
}

func sendMemory(out chan<- prometheus.Metric, as *prometheus.Desc, s *stats.MemoryStats, labels ...string) {
	if s != nil && s.WorkingSetBytes != nil {
		send(out, as, prometheus.GaugeValue, s.Time, float64(*s.WorkingSetBytes), labels...)
	}
}

func send(out chan<- prometheus.Metric, as *prometheus.Desc, kind prometheus.ValueType, at metav1.Time, number float64, labels ...string) {
	out <- prometheus.NewMetricWithTimestamp(at.Time, prometheus.MustNewConstMetric(as, kind, number, labels...))
}

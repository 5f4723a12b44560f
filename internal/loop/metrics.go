package loop

import (
	"errors"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	syncs = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "mend_loop_sync_duration_seconds",
		Help:           "Time one sync of one key took, by loop and result (ok, stale, error).",
		Buckets:        metrics.ExponentialBuckets(0.0005, 4, 8),
		StabilityLevel: metrics.ALPHA,
	}, []string{"loop", "result"})
	panics = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "mend_loop_panics_total",
		Help:           "Panics fenced inside a sync, by loop.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"loop"})
)

func init() { legacyregistry.MustRegister(syncs, panics) }

func observeSync(name string, took time.Duration, err error) {
	result := "ok"
	switch {
	case errors.Is(err, ErrStale):
		result = "stale"
	case err != nil:
		result = "error"
	}
	syncs.WithLabelValues(name, result).Observe(took.Seconds())
}

package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/utils/clock"
)

const (
	// limit is how many warnings may wait, and how many normal events. One is about a
	// kilobyte.
	limit = 20_000
	// pace is the wait before each event while others write: 50 a second, which
	// is what upstream's kubelet may write.
	pace = 20 * time.Millisecond
	// tries and retryWait are upstream's.
	tries     = 12
	retryWait = 10 * time.Second
	// remembered is how many different events are known, to be counted when they come
	// again: as many as 110 Pods tell, with room. Upstream's kubelet knows 4,096.
	remembered = 1024
)

// Config is what a [Writer] needs; Busy may be nil.
type Config struct {
	Sink record.EventSink
	// Busy says whether others write at present. It must not block.
	Busy  func() bool
	Clock clock.Clock
	Log   *slog.Logger
}

// Writer takes events from a broadcaster and writes them one after another.
type Writer struct {
	config     Config
	correlator *record.EventCorrelator
	arrived    chan struct{} // capacity 1

	mu       sync.Mutex
	warnings []*v1.Event
	normal   []*v1.Event
	dropped  int
}

// New returns a writer that writes while Run runs.
func New(config Config) *Writer {
	if config.Busy == nil {
		config.Busy = func() bool { return false }
	}
	return &Writer{config: config, arrived: make(chan struct{}, 1),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{Clock: config.Clock, LRUCacheSize: remembered})}
}

// Take lets an event wait to be written. It never blocks.
func (w *Writer) Take(event *v1.Event) {
	w.mu.Lock()
	waiting := &w.normal
	if event.Type == v1.EventTypeWarning {
		waiting = &w.warnings
	}
	if len(*waiting) < limit {
		*waiting = append(*waiting, event)
	} else {
		w.dropped++
	}
	w.mu.Unlock()
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends. What waits then is not written.
func (w *Writer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		event := w.next()
		if event == nil {
			select {
			case <-w.arrived:
				continue
			case <-ctx.Done():
				return
			}
		}
		if w.config.Busy() && !w.wait(ctx, pace) {
			return
		}
		w.record(ctx, event)
	}
}

func (w *Writer) next() *v1.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, waiting := range []*[]*v1.Event{&w.warnings, &w.normal} {
		if len(*waiting) > 0 {
			event := (*waiting)[0]
			(*waiting)[0] = nil // for the garbage collector
			*waiting = (*waiting)[1:]
			return event
		}
	}
	if w.dropped > 0 {
		w.config.Log.Warn("events were dropped: too many waited", "count", w.dropped)
		w.dropped = 0
	}
	w.warnings, w.normal = nil, nil
	return nil
}

// wait says whether it was not cut short by the end of ctx.
func (w *Writer) wait(ctx context.Context, d time.Duration) bool {
	timer := w.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// record counts the event in an object that tells the same, or writes a new one.
// Only a server that does not answer is asked again, as upstream's recorder does.
func (w *Writer) record(ctx context.Context, event *v1.Event) {
	own := *event // the correlator changes it
	result, err := w.correlator.EventCorrelate(&own)
	if err != nil {
		w.config.Log.Error("correlating an event", "err", err)
		return
	}
	if result.Skip {
		return
	}
	for range tries {
		written, err := w.write(result)
		switch {
		case err == nil:
			w.correlator.UpdateState(written)
			return
		case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
			return
		case isAnswer(err):
			w.config.Log.Warn("an event was refused", "reason", event.Reason, "about", event.InvolvedObject.Name, "err", err)
			return
		case !w.wait(ctx, retryWait):
			return
		}
	}
}

func (w *Writer) write(result *record.EventCorrelateResult) (*v1.Event, error) {
	if result.Event.Count > 1 {
		written, err := w.config.Sink.Patch(result.Event, result.Patch)
		if !util.IsKeyNotFoundError(err) {
			return written, err
		}
	}
	result.Event.ResourceVersion = ""
	return w.config.Sink.Create(result.Event)
}

func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Back-off of one key after consecutive errors: 5 ms doubling to 30 s. Upstream
// goes to 1000 s; an obstacle that is gone must not leave an object waiting for
// a quarter of an hour.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 30 * time.Second
	// staleRecheck stands behind the informer event that normally ends a wait
	// for our own write to arrive in the cache.
	staleRecheck = time.Second
)

// ErrStale says that the view has not yet reached the loop's own last write for
// this key. It is not a failure: the event that brings the write enqueues the
// key again, and a slow recheck stands behind it.
var ErrStale = errors.New("view is behind this loop's own last write")

// Reconciler moves the object named by key ("namespace/name", or "name" for
// cluster-scoped kinds) towards its desired state.
//
// Sync is never called for the same key twice at once. It returns the absolute
// time at which to look again (zero: only when something changes) or an error,
// which puts the key into back-off.
type Reconciler interface {
	Sync(ctx context.Context, key string) (recheck time.Time, err error)
}

// Func adapts a function to [Reconciler].
type Func func(ctx context.Context, key string) (time.Time, error)

// Sync calls f.
func (f Func) Sync(ctx context.Context, key string) (time.Time, error) { return f(ctx, key) }

// Options configure a [Loop]. Name and Reconciler are required.
type Options struct {
	Name       string
	Reconciler Reconciler
	Workers    int              // default 4
	Clock      clock.WithTicker // default the real clock
	Log        *slog.Logger     // default slog.Default()
	// Order decides which waiting key is next; nil means first come, first
	// served. Its methods are called one at a time.
	Order workqueue.Queue[string]
	Drive *Drive // the Env's
}

// Loop runs one [Reconciler]. Its methods may be called from any goroutine.
type Loop struct {
	opts  Options
	queue workqueue.TypedRateLimitingInterface[string]

	mu         sync.Mutex
	panicked   int
	panickedOn string
}

// New returns a loop that accepts keys at once and works on them after Run.
func New(opts Options) *Loop {
	if opts.Workers <= 0 {
		opts.Workers = 4
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	opts.Log = opts.Log.With("loop", opts.Name)
	return &Loop{opts: opts, queue: newQueue(opts)}
}

// newQueue makes the queue without a name: a named one wakes twice a second to
// measure itself, and all loops together would be what mostly runs at rest.
func newQueue(opts Options) workqueue.TypedRateLimitingInterface[string] {
	if opts.Drive != nil {
		return opts.Drive.Queue(opts.Name)
	}
	ready := workqueue.NewTypedWithConfig(
		workqueue.TypedQueueConfig[string]{Clock: opts.Clock, Queue: opts.Order})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(
		workqueue.TypedDelayingQueueConfig[string]{Clock: opts.Clock, Queue: ready})
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: opts.Clock, DelayingQueue: delaying})
}

// Name is the loop's name as declared.
func (l *Loop) Name() string { return l.opts.Name }

// Add asks for a sync of key. Keys already waiting are not doubled.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddAt asks for a sync of key at the given time.
func (l *Loop) AddAt(key string, at time.Time) {
	l.queue.AddAfter(key, at.Sub(l.opts.Clock.Now()))
}

// Len is the number of keys waiting.
func (l *Loop) Len() int { return l.queue.Len() }

// Run works until ctx ends, then waits for syncs under way and returns.
func (l *Loop) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for range l.opts.Workers {
		workers.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	l.queue.ShutDown()
	workers.Wait()
}

func (l *Loop) next(ctx context.Context) bool {
	key, shutdown := l.queue.Get()
	if shutdown {
		return false
	}
	defer l.queue.Done(key)
	start := l.opts.Clock.Now()
	recheck, err := l.fenced(ctx, key)
	observeSync(l.opts.Name, l.opts.Clock.Since(start), err)
	l.settle(ctx, key, recheck, err)
	return true
}

// settle decides when key is looked at next.
func (l *Loop) settle(ctx context.Context, key string, recheck time.Time, err error) {
	switch {
	case err == nil:
		l.queue.Forget(key)
		if !recheck.IsZero() {
			l.AddAt(key, recheck)
		}
	case ctx.Err() != nil:
		return
	case errors.Is(err, ErrStale):
		l.queue.AddAfter(key, staleRecheck)
	default:
		l.queue.AddRateLimited(key)
		l.opts.Log.Warn("sync failed; will retry", "key", key, "retries", l.queue.NumRequeues(key), "err", err)
	}
}

// fenced turns a panic of one sync into an error of its key.
func (l *Loop) fenced(ctx context.Context, key string) (recheck time.Time, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			l.opts.Log.Error("panic in sync", "key", key, "panic", cause, "stack", string(debug.Stack()))
			l.notePanic(key)
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return l.opts.Reconciler.Sync(ctx, key)
}

func (l *Loop) notePanic(key string) {
	panics.WithLabelValues(l.opts.Name).Inc()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.panicked, l.panickedOn = l.panicked+1, key
}

// Panics is how many panics were fenced since the start, and the key of the last.
func (l *Loop) Panics() (n int, last string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.panicked, l.panickedOn
}

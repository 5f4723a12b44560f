package apiserver

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// mostBehind is how many events of a watch may wait, and as many may be being given.
const mostBehind = 10_000

// Watch implements rest.Watcher.
func (r *resource) Watch(ctx context.Context, options *metainternal.ListOptions) (watch.Interface, error) {
	return r.watch(ctx, options, nil)
}

// watch converts each event, if convert is not nil, for the one who watches.
func (r *resource) watch(ctx context.Context, options *metainternal.ListOptions, convert func(watch.Event) watch.Event) (watch.Interface, error) {
	var from metainternal.ListOptions
	if options != nil {
		from = *options
	}
	inner, err := r.Store.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	w := newBufferedWatch(inner, convert)
	if from.ResourceVersion != "" && from.ResourceVersion != "0" && !ptr.Deref(from.SendInitialEvents, false) {
		w.reached = from.ResourceVersion
	}
	w.again = func(version string) (watch.Interface, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next := from
		next.ResourceVersion, next.ResourceVersionMatch, next.SendInitialEvents = version, "", nil
		return r.Store.Watch(ctx, &next)
	}
	go w.take()
	return w, nil
}

// bufferedWatch takes a watch's events as they come, gives them on as they are taken, and
// goes on where it was when the watch cache breaks it off.
//
// The watch cache gives all watches of a kind the next event only when each has taken the
// last but ten, and breaks off the slowest when that took more than a tenth of a second,
// or a twentieth of the time since. Whoever is broken off comes back after a second or two,
// and until then does nothing: of a thousand Pods that started, some thirty watches, those
// of the loops among them, were lost to a machine that had just so much to do.
type bufferedWatch struct {
	convert func(watch.Event) watch.Event
	// again watches from a version on. It may be nil.
	again   func(version string) (watch.Interface, error)
	reached string // version up to which all was told; "": not known. Only take uses it.
	result  chan watch.Event
	stopped chan struct{}

	mu      sync.Mutex
	room    sync.Cond
	inner   watch.Interface
	waiting []watch.Event
	giving  bool // a goroutine gives what waits, and closes result if ended
	ended   bool // nothing comes any more
	left    bool // nobody takes any more; stopped is closed
}

// newBufferedWatch does nothing before take is called.
func newBufferedWatch(inner watch.Interface, convert func(watch.Event) watch.Event) *bufferedWatch {
	w := &bufferedWatch{inner: inner, convert: convert, result: make(chan watch.Event), stopped: make(chan struct{})}
	w.room.L = &w.mu
	return w
}

// ResultChan implements watch.Interface.
func (w *bufferedWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *bufferedWatch) Stop() {
	w.mu.Lock()
	if !w.left {
		w.left = true
		close(w.stopped)
		w.room.Broadcast()
	}
	inner := w.inner
	w.mu.Unlock()
	inner.Stop()
}

// take makes room for the next event and does nothing else, until there is too much.
func (w *bufferedWatch) take() {
	for inner := w.inner; inner != nil; inner = w.resume() {
		for event := range inner.ResultChan() {
			w.note(event)
			w.mu.Lock()
			for len(w.waiting) >= mostBehind && !w.left {
				w.room.Wait()
			}
			w.waiting = append(w.waiting, event)
			w.giveLocked()
			w.mu.Unlock()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.giveLocked()
}

// note keeps the version that the watch has reached. A watch begins with what there is, in
// no order, if it does not begin at a version: then nothing is reached before a bookmark.
func (w *bufferedWatch) note(event watch.Event) {
	if event.Type == watch.Error {
		w.again = nil // it says why the watch ends
		return
	}
	if w.reached == "" && event.Type != watch.Bookmark {
		return
	}
	if object, err := meta.Accessor(event.Object); err == nil && object.GetResourceVersion() != "" {
		w.reached = object.GetResourceVersion()
	}
}

// resume is nil if the watch has ended for good.
func (w *bufferedWatch) resume() watch.Interface {
	w.mu.Lock()
	left := w.left
	w.mu.Unlock()
	if left || w.again == nil || w.reached == "" {
		return nil
	}
	inner, err := w.again(w.reached)
	if err != nil {
		return nil // whoever watches asks himself, and is told
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inner = inner
	if w.left {
		inner.Stop()
	}
	return inner
}

func (w *bufferedWatch) giveLocked() {
	if !w.giving {
		w.giving = true
		go w.give()
	}
}

// give ends when nothing waits: most watches are at rest.
func (w *bufferedWatch) give() {
	for {
		w.mu.Lock()
		events := w.waiting
		w.waiting = nil
		if len(events) == 0 {
			w.giving = false
			if w.ended {
				close(w.result)
			}
			w.mu.Unlock()
			return
		}
		w.room.Broadcast()
		w.mu.Unlock()
		for _, event := range events {
			if w.convert != nil {
				event = w.convert(event)
			}
			select {
			case w.result <- event:
			case <-w.stopped:
			}
		}
	}
}

package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// sink keeps what is written and fails as told.
type sink struct {
	mu      sync.Mutex
	created []string
	patched []string
	fails   []error
}

func (s *sink) Create(event *v1.Event) (*v1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fails) > 0 {
		err := s.fails[0]
		s.fails = s.fails[1:]
		return nil, err
	}
	s.created = append(s.created, event.Reason+"/"+event.InvolvedObject.Name)
	return event, nil
}

func (s *sink) Update(event *v1.Event) (*v1.Event, error) { return event, nil }

func (s *sink) Patch(event *v1.Event, _ []byte) (*v1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patched = append(s.patched, fmt.Sprintf("%s/%s ×%d", event.Reason, event.InvolvedObject.Name, event.Count))
	return event, nil
}

func (s *sink) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.created...)
}

func event(kind, reason, about string) *v1.Event {
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: about + "." + reason, Namespace: "shop"},
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: about},
		Type:           kind, Reason: reason, Message: reason,
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}
}

// running starts a writer in a synctest bubble; it ends with the test.
func running(t *testing.T, s *sink, busy func() bool) *Writer {
	ctx, cancel := context.WithCancel(t.Context())
	w := New(Config{Sink: s, Busy: busy, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func TestWritesAtOnceWhileNobodyElseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		w := running(t, s, nil)
		for i := range 100 {
			w.Take(event(v1.EventTypeNormal, "Started", fmt.Sprint(i)))
		}
		synctest.Wait()
		if got := len(s.written()); got != 100 {
			t.Errorf("%d of 100 events are written with nobody in the way", got)
		}
	})
}

func TestYieldsToOthersAndPutsWarningsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		w := running(t, s, func() bool { return true })
		for i := range 100 {
			w.Take(event(v1.EventTypeNormal, "Started", fmt.Sprint(i)))
		}
		synctest.Wait()
		w.Take(event(v1.EventTypeWarning, "Failed", "late"))
		<-time.After(10*pace + pace/2)
		got := s.written()
		if len(got) != 10 {
			t.Fatalf("%d events in %v while others write; want 10", len(got), 10*pace)
		}
		// The first was under way before the warning came.
		if diff := cmp.Diff([]string{"Started/0", "Failed/late", "Started/1"}, got[:3]); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestCountsEqualEventsInOneObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		w := running(t, s, nil)
		for range 3 {
			w.Take(event(v1.EventTypeWarning, "BackOff", "web"))
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"BackOff/web"}, s.written()); diff != "" {
			t.Errorf("created (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"BackOff/web ×2", "BackOff/web ×3"}, s.patched); diff != "" {
			t.Errorf("patched (-want +got):\n%s", diff)
		}
	})
}

func TestAsksAgainOnlyWhenThereWasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{fails: []error{errors.New("connection refused"), apierrors.NewBadRequest("no")}}
		w := running(t, s, nil)
		w.Take(event(v1.EventTypeNormal, "Started", "a"))
		<-time.After(retryWait + time.Second)
		w.Take(event(v1.EventTypeNormal, "Started", "b"))
		synctest.Wait()
		if diff := cmp.Diff([]string{"Started/b"}, s.written()); diff != "" {
			t.Errorf("a was refused when asked again, b was taken (-want +got):\n%s", diff)
		}
	})
}

func TestDropsTheNewestBeyondTheLimit(t *testing.T) {
	w := New(Config{Sink: &sink{}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	for i := range limit + 2 {
		w.Take(event(v1.EventTypeNormal, "Started", fmt.Sprint(i)))
	}
	for i := range limit + 3 {
		w.Take(event(v1.EventTypeWarning, "Failed", fmt.Sprint(i)))
	}
	if len(w.normal) != limit || len(w.warnings) != limit || w.dropped != 5 {
		t.Errorf("%d normal, %d warnings, %d dropped; want %d of each, 5 dropped", len(w.normal), len(w.warnings), w.dropped, limit)
	}
}

func TestWritesNothingOnceItIsToEnd(t *testing.T) {
	s := &sink{}
	w := New(Config{Sink: s, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	w.Take(event(v1.EventTypeNormal, "Started", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Run(ctx)
	if got := s.written(); len(got) != 0 {
		t.Errorf("written after the end: %v", got)
	}
}

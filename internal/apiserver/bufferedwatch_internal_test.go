package apiserver

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func at(kind watch.EventType, version int) watch.Event {
	return watch.Event{Type: kind, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)}}}
}

func versionOf(e watch.Event) int {
	n, err := strconv.Atoi(e.Object.(*corev1.Pod).ResourceVersion)
	if err != nil {
		panic(err)
	}
	return n
}

// started is a buffered watch of inner, and what it is told to watch again from.
func started(inner watch.Interface, from string, again func(version string) (watch.Interface, error)) *bufferedWatch {
	w := newBufferedWatch(inner, nil)
	w.reached, w.again = from, again
	go w.take()
	return w
}

func TestABufferedWatchTakesWhatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := watch.NewFake() // takes an event only when it is read
		w := started(inner, "", nil)
		for i := range 1000 {
			inner.Action(watch.Modified, at(watch.Modified, i+1).Object)
		}
		inner.Stop()
		n := 0
		for e := range w.ResultChan() {
			if n++; versionOf(e) != n {
				t.Fatalf("event %d has version %d", n, versionOf(e))
			}
		}
		if n != 1000 {
			t.Errorf("%d events of 1,000", n)
		}
	})
}

func TestABufferedWatchHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := watch.NewFakeWithChanSize(3*mostBehind, false)
		for i := range 3 * mostBehind {
			inner.Action(watch.Modified, at(watch.Modified, i+1).Object)
		}
		w := started(inner, "", nil)
		synctest.Wait()
		if left := len(inner.ResultChan()); left < mostBehind/2 {
			t.Errorf("%d of %d events are left: nothing bounds what is taken", left, 3*mostBehind)
		}
		for i := range 3 * mostBehind {
			if e := <-w.ResultChan(); versionOf(e) != i+1 {
				t.Fatalf("event %d has version %d", i+1, versionOf(e))
			}
		}
		w.Stop()
		if _, open := <-w.ResultChan(); open {
			t.Error("an event after the end")
		}
	})
}

func TestABufferedWatchGoesOnWhereItWasBrokenOff(t *testing.T) {
	bookmark, modified, added := watch.Bookmark, watch.Modified, watch.Added
	for name, tt := range map[string]struct {
		from  string // version that the watch begins at
		first []watch.Event
		again string // version that it is resumed from, "": it ends
	}{
		"after an event":                          {"5", []watch.Event{at(modified, 7), at(watch.Deleted, 9)}, "9"},
		"after a bookmark":                        {"5", []watch.Event{at(modified, 7), at(bookmark, 12)}, "12"},
		"before any event":                        {"5", nil, "5"},
		"among what there is":                     {"", []watch.Event{at(added, 7), at(added, 3)}, ""},
		"after the mark behind what there is":     {"", []watch.Event{at(added, 7), at(added, 3), at(bookmark, 8)}, "8"},
		"after what came behind that":             {"", []watch.Event{at(added, 7), at(bookmark, 8), at(modified, 11)}, "11"},
		"not after an error":                      {"5", []watch.Event{at(modified, 7), {Type: watch.Error, Object: &metav1.Status{}}}, ""},
		"not after an error in what there is":     {"", []watch.Event{{Type: watch.Error, Object: &metav1.Status{}}}, ""},
		"not without a bookmark in what there is": {"", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, second := watch.NewFakeWithChanSize(10, false), watch.NewFakeWithChanSize(10, false)
				asked := ""
				w := started(inner, tt.from, func(version string) (watch.Interface, error) {
					if asked != "" {
						return nil, errors.New("asked twice")
					}
					asked = version
					return second, nil
				})
				for _, e := range tt.first {
					inner.Action(e.Type, e.Object)
				}
				inner.Stop()
				second.Action(modified, at(modified, 100).Object)
				second.Stop()
				got := 0
				for range w.ResultChan() {
					got++
				}
				want := len(tt.first)
				if tt.again != "" {
					want++
				}
				if asked != tt.again || got != want {
					t.Errorf("resumed from %q and got %d events; want %q and %d", asked, got, tt.again, want)
				}
			})
		})
	}
}

func TestABufferedWatchEndsWhenItIsStopped(t *testing.T) {
	for name, before := range map[string]func(*watch.FakeWatcher){
		"at rest":               func(*watch.FakeWatcher) {},
		"with events not taken": func(f *watch.FakeWatcher) { f.Action(watch.Modified, at(watch.Modified, 7).Object) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
				inner := watch.NewFakeWithChanSize(10, false)
				w := started(inner, "5", func(string) (watch.Interface, error) {
					t.Error("a watch that was stopped is resumed")
					return nil, errors.New("no")
				})
				before(inner)
				synctest.Wait()
				w.Stop()
				w.Stop()
				synctest.Wait()
				if !inner.IsStopped() {
					t.Error("the inner watch goes on")
				}
			})
		})
	}
}

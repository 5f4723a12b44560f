package schedule

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	"pgregory.net/rapid"
)

// TestFunctionsRunAtTheirTimesInOrder adds functions with any delays, takes some
// back, and wants the others at exactly their times.
func TestFunctionsRunAtTheirTimesInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		delays := rapid.SliceOfN(rapid.IntRange(0, 20), 1, 30).Draw(rt, "delays")
		taken := rapid.SliceOfN(rapid.Bool(), len(delays), len(delays)).Draw(rt, "taken back")
		synctest.Test(t, func(t *testing.T) {
			s := New(clock.RealClock{})
			type event struct {
				at    time.Duration
				which int
			}
			var mu sync.Mutex
			var got, want []event
			start := time.Now()
			for i, seconds := range delays {
				delay := time.Duration(seconds) * time.Second
				cancel := s.After(delay, func() {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, event{time.Since(start), i})
				})
				if taken[i] && seconds > 0 {
					if !cancel() || cancel() {
						t.Error("taking back must work once")
					}
					continue
				}
				want = append(want, event{delay, i})
			}
			<-time.After(30 * time.Second)
			synctest.Wait()
			slices.SortStableFunc(want, func(a, b event) int { return int(a.at - b.at) })
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	})
}

func TestStopDropsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(clock.RealClock{})
		ran := false
		cancel := s.After(time.Second, func() { ran = true })
		s.Stop()
		s.After(time.Second, func() { ran = true })
		<-time.After(time.Minute)
		synctest.Wait()
		if ran || cancel() {
			t.Error("something ran, or could still be taken back, after Stop")
		}
	})
}

func TestAFunctionMayAddAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(clock.RealClock{})
		var ran time.Duration
		start := time.Now()
		s.After(time.Second, func() {
			s.After(2*time.Second, func() { ran = time.Since(start) })
		})
		<-time.After(time.Minute)
		synctest.Wait()
		if ran != 3*time.Second {
			t.Errorf("ran after %v, want 3 s", ran)
		}
	})
}

package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClearingAwayYieldsToStarts(t *testing.T) {
	for name, tt := range map[string]struct {
		starts []time.Duration // of starts one after the other, 5 ms apart
		want   time.Duration
	}{
		"nothing is being started":               {nil, yieldPause},
		"a start is waited for":                  {[]time.Duration{100 * time.Millisecond}, 100*time.Millisecond + yieldPause},
		"so is the next, which follows at once":  {[]time.Duration{80 * time.Millisecond, 40 * time.Millisecond}, 125*time.Millisecond + yieldPause},
		"starts without end are not waited for":  {[]time.Duration{time.Minute}, yieldLimit},
		"nor are many short ones that never end": {slicesOf(time.Second, 20*time.Millisecond), yieldLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStarts()
				begun, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					for i, d := range tt.starts {
						end := s.begin()
						if i == 0 {
							close(begun)
						}
						<-time.After(d)
						end()
						<-time.After(5 * time.Millisecond)
					}
				}()
				if len(tt.starts) > 0 {
					<-begun
				}
				began := time.Now()
				s.yield(t.Context())
				if took := time.Since(began); took != tt.want {
					t.Errorf("yielded for %v, want %v", took, tt.want)
				}
				<-ended
			})
		})
	}
}

// slicesOf cuts a time into pieces.
func slicesOf(whole, piece time.Duration) []time.Duration {
	pieces := make([]time.Duration, whole/piece)
	for i := range pieces {
		pieces[i] = piece
	}
	return pieces
}

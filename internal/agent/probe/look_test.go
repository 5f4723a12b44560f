package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// server refuses connections until it is up, and notes when it was asked.
type server struct {
	start, up time.Time
	mu        sync.Mutex
	asked     []time.Duration
}

func (s *server) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Since(s.start))
	if time.Now().Before(s.up) {
		return nil, errors.New("connect: connection refused")
	}
	near, far := net.Pipe()
	go far.Close()
	return near, nil
}

func tcpProbe(kind Kind) v1.Container {
	probe := &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}},
		PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1}
	switch kind {
	case Startup:
		return v1.Container{StartupProbe: probe}
	case Liveness:
		return v1.Container{LivenessProbe: probe}
	default:
		return v1.Container{ReadinessProbe: probe}
	}
}

func TestLooksAheadOfThePeriod(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name   string
		kind   Kind
		up     time.Duration
		until  time.Duration
		asked  []time.Duration
		change []string
		events int
	}{
		{"a readiness probe is looked at until the server is up", Readiness, 300 * ms, 25 * time.Second,
			[]time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 10 * time.Second, 20 * time.Second},
			[]string{"0s failure", "350ms success"}, 1},
		{"one look comes when the server is up at once", Readiness, 0, 15 * time.Second,
			[]time.Duration{0, 10 * time.Second}, []string{"0s success"}, 0},
		{"looks get rarer and end with the period", Readiness, time.Hour, 25 * time.Second,
			[]time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 3150 * ms, 6350 * ms, 10 * time.Second, 20 * time.Second},
			[]string{"0s failure"}, 3},
		{"a liveness probe is not looked at", Liveness, time.Hour, 5 * time.Second,
			[]time.Duration{0}, []string{"0s failure"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				s := &server{start: start, up: start.Add(tt.up)}
				var mu sync.Mutex
				var changes []string
				events := 0
				m := NewManager(Options{Dial: s.dial, OnChange: func(o Observation) {
					mu.Lock()
					defer mu.Unlock()
					changes = append(changes, fmt.Sprintf("%v %s", time.Since(start), map[Result]string{Success: "success", Failure: "failure"}[o.Result]))
				}, OnFailure: func(Observation) { mu.Lock(); defer mu.Unlock(); events++ }})
				defer m.Stop()
				m.Ensure(target("c1", tcpProbe(tt.kind)))
				pass(tt.until)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if !slices.Equal(s.asked, tt.asked) {
					t.Errorf("asked at %v, want %v", s.asked, tt.asked)
				}
				if !slices.Equal(changes, tt.change) || events != tt.events {
					t.Errorf("changes %v and %d events, want %v and %d", changes, events, tt.change, tt.events)
				}
			})
		})
	}
}

func TestAStartupProbeThatIsLookedAtFailsNoEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		container := tcpProbe(Startup)
		container.StartupProbe.FailureThreshold = 3
		var failedAt time.Duration
		m := NewManager(Options{Dial: (&server{start: start, up: start.Add(time.Hour)}).dial,
			OnChange: func(Observation) { failedAt = time.Since(start) }, OnFailure: func(Observation) {}})
		defer m.Stop()
		m.Ensure(target("c1", container))
		pass(time.Minute)
		synctest.Wait()
		if failedAt != 20*time.Second {
			t.Errorf("startup failed after %v, want after the third regular attempt at 20s", failedAt)
		}
	})
}

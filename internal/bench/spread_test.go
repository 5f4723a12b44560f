package bench

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	var times []time.Duration
	for i := 100; i >= 1; i-- {
		times = append(times, time.Duration(i)*time.Second)
	}
	want := &Spread{Count: 100, Min: 1, Median: 51, P99: 100, Max: 100}
	if diff := cmp.Diff(want, spread(times)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&Spread{Count: 1, Min: 2, Median: 2, P99: 2, Max: 2}, spread([]time.Duration{2 * time.Second})); diff != "" {
		t.Error(diff)
	}
}

func TestSharesAddUp(t *testing.T) {
	for _, tt := range []struct {
		replicas, deployments int
		want                  []int
	}{{10, 1, []int{10}}, {10, 3, []int{4, 3, 3}}, {3, 3, []int{1, 1, 1}}} {
		b := &bench{Options: Options{Replicas: tt.replicas, Deployments: tt.deployments}}
		if diff := cmp.Diff(tt.want, b.shares()); diff != "" {
			t.Errorf("%d over %d: %s", tt.replicas, tt.deployments, diff)
		}
	}
}

func TestAccountsSeeThisProcess(t *testing.T) {
	started := startAccounts([]int{os.Getpid()})
	sum := 0
	for i := range 300_000_000 {
		sum += i
	}
	got := started.end()
	if sum == 0 || len(got) != 1 || got[0].PeakBytes < 1<<20 || got[0].CPUSeconds < 0 || got[0].CPUSeconds > 60 {
		t.Errorf("accounts = %+v", got)
	}
}

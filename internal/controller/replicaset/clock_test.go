package replicaset

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPlanWhenClocksDiffer(t *testing.T) {
	for name, tt := range map[string]struct {
		readySince time.Duration // from now
		want       Plan
	}{
		"a Pod that became ready before the clock was set back stays available": {24 * time.Hour, Plan{}},
		"a Pod whose node's clock is ahead waits a little longer": {5 * time.Second, func() Plan {
			s := status(4, 3, 3, 0)
			s.AvailableReplicas = 2
			return Plan{Status: &s, Recheck: now.Add(35 * time.Second)}
		}()},
	} {
		t.Run(name, func(t *testing.T) {
			o := settled()
			o.ReplicaSet.Spec.MinReadySeconds = 30
			readyFor(-tt.readySince)(o.Pods[0])
			if diff := cmp.Diff(tt.want, plan(o, now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

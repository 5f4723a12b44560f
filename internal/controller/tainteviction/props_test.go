package tainteviction

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

var keys = rapid.SampledFrom([]string{"x", "y", "z"})

func drawToleration(t *rapid.T) v1.Toleration {
	toleration := tolerates(keys.Draw(t, "key"))
	if rapid.Bool().Draw(t, "limited") {
		seconds := rapid.Int64Range(-1, 100).Draw(t, "seconds")
		toleration.TolerationSeconds = &seconds
	}
	return toleration
}

// A Pod is evicted at one moment only: never before, always from then on; and
// looking at it more often, as events make us do, does not move that moment.
func TestPodGoesAtOneMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := aPod()
		for range rapid.IntRange(0, 4).Draw(t, "tolerations") {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, drawToleration(t))
		}
		taints := under(rapid.SliceOfNDistinct(keys, 0, 3, rapid.ID).Draw(t, "taints")...)

		first := MakePlan(Observed{Pod: pod, Taints: taints}, start)
		due, goes := first.Recheck, !first.Recheck.IsZero()
		if first.Evict != nil {
			due, goes = start, true
		}
		since := first.Since
		for at := range 120 {
			if !rapid.Bool().Draw(t, "looks") {
				continue
			}
			now := after(time.Duration(at) * time.Second)
			plan := MakePlan(Observed{Pod: pod, Taints: taints, Since: since}, now)
			since = plan.Since
			if want := goes && !now.Before(due); (plan.Evict != nil) != want {
				t.Fatalf("after %d s: evicted %v, want %v", at, plan.Evict != nil, want)
			}
		}
	})
}

func TestOrderOfTaintsMakesNoDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := aPod(drawToleration(t), drawToleration(t), drawToleration(t))
		taints := under("x", "y", "z")
		want := MakePlan(Observed{Pod: pod, Taints: taints}, start)
		got := MakePlan(Observed{Pod: pod, Taints: rapid.Permutation(taints).Draw(t, "taints")}, start)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("plan depends on the order:\n%s", diff)
		}
	})
}

package tainteviction

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return start.Add(d) }

func aPod(tolerations ...v1.Toleration) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: v1.PodSpec{Tolerations: tolerations}}
}

// tolerates key for the seconds, or for ever when there are none.
func tolerates(key string, seconds ...int64) v1.Toleration {
	t := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

func under(keys ...string) []v1.Taint {
	var taints []v1.Taint
	for _, key := range keys {
		taints = append(taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute})
	}
	return taints
}

func TestPodGoesWhenItsTolerationEnds(t *testing.T) {
	goes := &Evict{Why: "Marking for deletion Pod default/p"}
	stays := &Cancel{Why: "Cancelling deletion of Pod default/p"}
	for sentence, tc := range map[string]struct {
		observed Observed
		want     Plan
	}{
		"no taint, nothing to do":        {Observed{Pod: aPod()}, Plan{}},
		"a taint that is not tolerated":  {Observed{Pod: aPod(), Taints: under("x")}, Plan{Since: start, Evict: goes}},
		"one of two is not tolerated":    {Observed{Pod: aPod(tolerates("x")), Taints: under("x", "y")}, Plan{Since: start, Evict: goes}},
		"tolerated for ever":             {Observed{Pod: aPod(tolerates("x")), Taints: under("x")}, Plan{}},
		"everything is tolerated":        {Observed{Pod: aPod(v1.Toleration{Operator: v1.TolerationOpExists}), Taints: under("x", "y")}, Plan{}},
		"tolerated for a time":           {Observed{Pod: aPod(tolerates("x", 300)), Taints: under("x")}, Plan{Since: start, Recheck: after(300 * time.Second)}},
		"zero seconds are none":          {Observed{Pod: aPod(tolerates("x", 0)), Taints: under("x")}, Plan{Since: start, Evict: goes}},
		"so are fewer":                   {Observed{Pod: aPod(tolerates("x", -5)), Taints: under("x")}, Plan{Since: start, Evict: goes}},
		"the shortest counts":            {Observed{Pod: aPod(tolerates("x", 300), tolerates("y", 60), tolerates("z")), Taints: under("x", "y", "z")}, Plan{Since: start, Recheck: after(60 * time.Second)}},
		"the first toleration counts":    {Observed{Pod: aPod(tolerates("x", 60), tolerates("x")), Taints: under("x")}, Plan{Since: start, Recheck: after(60 * time.Second)}},
		"counting goes on":               {Observed{Pod: aPod(tolerates("x", 300)), Taints: under("x"), Since: after(-100 * time.Second)}, Plan{Since: after(-100 * time.Second), Recheck: after(200 * time.Second)}},
		"time is over":                   {Observed{Pod: aPod(tolerates("x", 300)), Taints: under("x"), Since: after(-300 * time.Second)}, Plan{Since: after(-300 * time.Second), Evict: goes}},
		"the taint goes while it counts": {Observed{Pod: aPod(tolerates("x", 300)), Since: after(-299 * time.Second)}, Plan{Cancel: stays}},
		"a second taint shortens it":     {Observed{Pod: aPod(tolerates("x", 300), tolerates("y", 30)), Taints: under("x", "y"), Since: after(-60 * time.Second)}, Plan{Since: after(-60 * time.Second), Evict: goes}},
		"a Pod that is going is left alone": {Observed{Pod: func() *v1.Pod { p := aPod(); p.DeletionTimestamp = &metav1.Time{}; return p }(), Taints: under("x")},
			Plan{}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, MakePlan(tc.observed, start)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

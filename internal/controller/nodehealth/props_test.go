package nodehealth

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

var (
	statuses = rapid.SampledFrom([]v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown})
	keys     = rapid.SampledFrom([]string{notReady, unreachable, v1.TaintNodeMemoryPressure, v1.TaintNodeUnschedulable, "user"})
	effects  = rapid.SampledFrom([]v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule})
	brakes   = rapid.SampledFrom([]brake{{}, {full: true}, free, {evictAt: after(time.Second)}})
	silences = rapid.SampledFrom([]silence{heard, silent})
)

func drawObserved(t *rapid.T) Observed {
	node := aNode("n")
	if rapid.IntRange(0, 4).Draw(t, "mute") == 0 {
		mute(node)
	}
	for _, c := range reported {
		if rapid.Bool().Draw(t, "says") {
			saying(c, statuses.Draw(t, "status"))(node)
		}
	}
	for range rapid.IntRange(0, 4).Draw(t, "taints") {
		taint := v1.Taint{Key: keys.Draw(t, "key"), Effect: effects.Draw(t, "effect")}
		if !hasTaint(node.Spec.Taints, taint) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	node.Spec.Unschedulable = rapid.Bool().Draw(t, "cordoned")
	o := Observed{Node: node, Silence: silences.Draw(t, "silence"), Brake: brakes.Draw(t, "brake"), IsNew: rapid.Bool().Draw(t, "new")}
	for i := range rapid.IntRange(0, 3).Draw(t, "pods") {
		o.Pods = append(o.Pods, aPod(string(rune('a'+i)), statuses.Draw(t, "pod ready")))
	}
	return o
}

// Any part of a plan can be carried out before a crash: the rest is planned
// again, and together they end where the whole plan ends.
func TestEveryPrefixOfAPlanLeadsToTheSameEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObserved(t)
		plan := MakePlan(o, start)
		whole := o
		for _, action := range plan.Actions {
			whole = done(whole, action)
		}
		if rest := MakePlan(whole, start); len(rest.Actions) != 0 {
			t.Fatalf("not at rest after the plan: %+v", rest.Actions)
		}
		for cut := range plan.Actions {
			partly := o
			for _, action := range plan.Actions[:cut] {
				partly = done(partly, action)
			}
			for _, action := range MakePlan(partly, start).Actions {
				partly = done(partly, action)
			}
			if diff := cmp.Diff(whole.Node.Spec.Taints, partly.Node.Spec.Taints); diff != "" {
				t.Fatalf("cut at %d, taints (-whole +partly):\n%s", cut, diff)
			}
			if diff := cmp.Diff(whole.Node.Status, partly.Node.Status); diff != "" {
				t.Fatalf("cut at %d, status (-whole +partly):\n%s", cut, diff)
			}
		}
	})
}

func TestPlanKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObserved(t)
		before := o.Node.DeepCopy()
		plan := MakePlan(o, start)
		if diff := cmp.Diff(before, o.Node); diff != "" {
			t.Fatalf("the plan changed its input:\n%s", diff)
		}
		wasEvicted := evicts(o.Node.Spec.Taints)
		for _, action := range plan.Actions {
			switch a := action.(type) {
			case SetTaints:
				for _, taint := range slices.Concat(a.Add, a.Remove) {
					if !isOurs(taint) {
						t.Fatalf("touches %v, which is somebody else's", taint)
					}
				}
			case SetUnknown, MarkPod:
				if o.Silence == heard {
					t.Fatalf("%+v although the node was heard", a)
				}
			}
			o = done(o, action)
		}
		switch isEvicted := evicts(o.Node.Spec.Taints); {
		case isEvicted && o.Brake.full:
			t.Fatal("evicts under the full brake")
		case isEvicted && !wasEvicted && o.Brake != free:
			t.Fatalf("evicts out of turn: %+v", o.Brake)
		}
		if o.Silence == heard && plan.Recheck.IsZero() {
			t.Fatal("a node that is heard is not looked at again")
		}
	})
}

func evicts(taints []v1.Taint) bool {
	return slices.ContainsFunc(taints, func(t v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute && isOurs(t) })
}

// The order of taints, conditions and Pods in what is observed makes no
// difference.
func TestPlanIsTheSameForAnyInputOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObserved(t)
		want := MakePlan(o, start)
		o.Node = o.Node.DeepCopy()
		o.Node.Spec.Taints = rapid.Permutation(o.Node.Spec.Taints).Draw(t, "taints")
		o.Node.Status.Conditions = rapid.Permutation(o.Node.Status.Conditions).Draw(t, "conditions")
		o.Pods = rapid.Permutation(o.Pods).Draw(t, "pods")
		if diff := cmp.Diff(want, MakePlan(o, start)); diff != "" {
			t.Fatalf("plan depends on the order:\n%s", diff)
		}
	})
}

package replicaset

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// randomWorld draws a ReplicaSet with Pods in any state, owned or not.
func randomWorld(t *rapid.T) Observed {
	o := settled()
	o.ReplicaSet.Spec.Replicas = ptr.To(rapid.Int32Range(0, 12).Draw(t, "replicas"))
	o.ReplicaSet.Spec.MinReadySeconds = rapid.SampledFrom([]int32{0, 0, 30}).Draw(t, "minReadySeconds")
	o.ReplicaSet.Status = status(
		rapid.Int64Range(3, 4).Draw(t, "observedGeneration"),
		rapid.Int32Range(0, 12).Draw(t, "status.replicas"), 0, 0)
	o.StatusWritten = now.Add(-rapid.SampledFrom([]time.Duration{0, 20, 200}).Draw(t, "written") * time.Millisecond)
	if rapid.Bool().Draw(t, "deleting") && rapid.Bool().Draw(t, "really") {
		terminatingRS(o.ReplicaSet)
	}
	o.Pods = make([]*v1.Pod, rapid.IntRange(0, 16).Draw(t, "pods"))
	o.PodsOnNode = map[string]int{}
	for i := range o.Pods {
		o.Pods[i] = randomPod(t, i)
		o.PodsOnNode[o.Pods[i].Spec.NodeName]++
	}
	return o
}

func terminatingRS(rs *apps.ReplicaSet) { rs.DeletionTimestamp = ptr.To(ago(time.Second)) }

func randomPod(t *rapid.T, i int) *v1.Pod {
	pod := readyPod(fmt.Sprintf("%c%d", 'a'+rapid.IntRange(0, 25).Draw(t, "letter"), i))
	pod.Spec.NodeName = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
	pod.Status.Phase = rapid.SampledFrom([]v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodRunning, v1.PodUnknown, v1.PodFailed, v1.PodSucceeded}).Draw(t, "phase")
	readyFor(rapid.SampledFrom([]time.Duration{-1, 0, 5, 7, 10, 40, 4000}).Draw(t, "ready") * time.Second)(pod)
	pod.CreationTimestamp = ago(rapid.SampledFrom([]time.Duration{5, 7, 5000}).Draw(t, "age") * time.Second)
	if n := rapid.Int32Range(0, 2).Draw(t, "restarts"); n > 0 {
		pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "web", RestartCount: n}}
	}
	for _, change := range []func(*v1.Pod){unready, terminating, orphaned, func(p *v1.Pod) { p.Labels = map[string]string{"app": "other"} }} {
		if rapid.IntRange(0, 4).Draw(t, "change") == 0 {
			change(pod)
		}
	}
	return pod
}

// active are the Pods that count in o.
func active(o Observed) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(o.Pods), func(p *v1.Pod) bool {
		return !isActive(p) || !metav1.IsControlledBy(p, o.ReplicaSet) || p.Labels["app"] != "web"
	})
}

// carryOut plays the first steps of one plan's writes on a world, a Pod at a
// time, and returns the world after them.
func carryOut(o Observed, p Plan, steps int) Observed {
	after := o
	after.Pods = make([]*v1.Pod, len(o.Pods))
	byUID := map[string]*v1.Pod{}
	for i, pod := range o.Pods {
		after.Pods[i] = pod.DeepCopy()
		byUID[string(pod.UID)] = after.Pods[i]
	}
	for _, write := range writesOf(p) {
		if steps == 0 {
			return after
		}
		steps--
		switch w := write.(type) {
		case Adopt:
			byUID[string(w.Pod.UID)].OwnerReferences = readyPod("x").OwnerReferences
		case Release:
			byUID[string(w.Pod.UID)].OwnerReferences = nil
		case CreatePods:
			pod := readyPod(fmt.Sprintf("new-%d", len(after.Pods)))
			unready(pod)
			pod.Status.Phase = v1.PodPending
			after.Pods = append(after.Pods, pod)
		case DeletePods:
			terminating(byUID[string(w.Pods[0].UID)])
		}
	}
	if p.Status != nil {
		after.ReplicaSet = o.ReplicaSet.DeepCopy()
		after.ReplicaSet.Status = *p.Status
		after.StatusWritten = now
	}
	return after
}

// writesOf takes actions apart into one per Pod.
func writesOf(p Plan) []Action {
	var writes []Action
	for _, action := range p.Actions {
		switch a := action.(type) {
		case CreatePods:
			for range a.Count {
				writes = append(writes, CreatePods{Count: 1})
			}
		case DeletePods:
			for _, pod := range a.Pods {
				writes = append(writes, DeletePods{Pods: []*v1.Pod{pod}})
			}
		default:
			writes = append(writes, action)
		}
	}
	return writes
}

func TestThePlanDoesNotDependOnTheOrderOfPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		shuffled := o
		shuffled.Pods = rapid.Permutation(o.Pods).Draw(t, "order")
		if diff := cmp.Diff(plan(o, now), plan(shuffled, now)); diff != "" {
			t.Fatalf("same world, other order (-want +got):\n%s", diff)
		}
	})
}

func TestAPlanNeverLooksAgainInThePast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if at := plan(randomWorld(t), now).Recheck; !at.IsZero() && !at.After(now) {
			t.Fatalf("at %s the plan wants to look again at %s", now, at)
		}
	})
}

func TestThePlanChangesNothingItReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		before := carryOut(o, Plan{}, 1) // a deep copy
		before.ReplicaSet = o.ReplicaSet.DeepCopy()
		plan(o, now)
		if diff := cmp.Diff(before, o); diff != "" {
			t.Fatalf("observed (-before +after):\n%s", diff)
		}
	})
}

func TestEveryPrefixMovesTowardsTheCountAndNeverPastIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		p := plan(o, now)
		want, have := desired(o.ReplicaSet), len(active(o))
		low, high := min(want, have), max(want, have)
		for steps := range len(writesOf(p)) + 1 {
			after := len(active(carryOut(o, p, steps)))
			if settlesClaims(p) {
				continue // the count becomes known only now
			}
			if after < low || after > high {
				t.Fatalf("after %d writes %d Pods are active; %d were, %d are wanted", steps, after, have, want)
			}
		}
	})
}

func settlesClaims(p Plan) bool {
	return slices.ContainsFunc(p.Actions, func(a Action) bool {
		switch a.(type) {
		case Adopt, Release:
			return true
		}
		return false
	})
}

// Whatever else counts, no Pod goes before one that is less far in its start.
func TestThePodsThatGoAreTheLeastStarted(t *testing.T) {
	started := func(pod *v1.Pod) [3]int {
		c := asCandidate(pod, nil)
		return [3]int{number(c.assigned), c.phase, number(c.ready)}
	}
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		for _, action := range plan(o, now).Actions {
			doomed, ok := action.(DeletePods)
			if !ok {
				continue
			}
			for _, kept := range active(o) {
				if slices.Contains(doomed.Pods, kept) {
					continue
				}
				for _, pod := range doomed.Pods {
					gone, stays := started(pod), started(kept)
					if slices.Compare(gone[:], stays[:]) > 0 {
						t.Fatalf("Pod %s goes at %v, %s stays at %v", pod.Name, gone, kept.Name, stays)
					}
				}
			}
		}
	})
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// From any world, with crashes in the middle of plans and Pods that come and go
// meanwhile, repeating plans ends in a world at rest.
func TestEveryWorldComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		for range rapid.IntRange(0, 5).Draw(t, "crashes") {
			p := plan(o, now)
			o = carryOut(o, p, rapid.IntRange(0, len(writesOf(p))).Draw(t, "writes before a crash"))
			settle(&o)
		}
		for range 4 { // claims, Pods, status, rest
			o = carryOut(o, plan(o, now), -1)
			settle(&o)
		}
		if p := plan(o, now); len(p.Actions) > 0 || p.Status != nil || !p.Recheck.IsZero() {
			t.Fatalf("not at rest: %+v", p)
		}
		checkRest(t, o)
	})
}

// settle lets time pass: terminating Pods are gone, ready ones were so for long.
func settle(o *Observed) {
	o.StatusWritten = time.Time{}
	o.Pods = slices.DeleteFunc(o.Pods, func(p *v1.Pod) bool { return p.DeletionTimestamp != nil })
	for _, pod := range o.Pods {
		if asCandidate(pod, nil).ready {
			readyFor(time.Hour)(pod)
		}
	}
}

func checkRest(t *rapid.T, o Observed) {
	if have, want := len(active(o)), desired(o.ReplicaSet); o.ReplicaSet.DeletionTimestamp == nil && have != want {
		t.Fatalf("at rest with %d Pods where %d are wanted", have, want)
	}
	if have := int(o.ReplicaSet.Status.Replicas); have != len(active(o)) {
		t.Fatalf("at rest the status says %d Pods, there are %d", have, len(active(o)))
	}
}

func BenchmarkPlanAtRest1000Pods(b *testing.B) {
	o := settled()
	o.ReplicaSet.Spec.Replicas = ptr.To[int32](1000)
	o.ReplicaSet.Status = status(4, 1000, 1000, 0)
	o.Pods = nil
	for i := range 1000 {
		o.Pods = append(o.Pods, readyPod(fmt.Sprintf("pod-%d", i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		if p := plan(o, now); len(p.Actions) > 0 || p.Status != nil {
			b.Fatalf("not at rest: %+v", p)
		}
	}
}

func BenchmarkPlanScaleDown1000To500(b *testing.B) {
	o := settled()
	o.ReplicaSet.Spec.Replicas = ptr.To[int32](500)
	o.Pods = nil
	for i := range 1000 {
		o.Pods = append(o.Pods, readyPod(fmt.Sprintf("pod-%d", i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		plan(o, now)
	}
}

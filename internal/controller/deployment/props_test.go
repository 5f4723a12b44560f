package deployment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// randomWorld draws a Deployment with ReplicaSets in any state, its statuses
// telling anything that might be read.
func randomWorld(t *rapid.T) Observed {
	replicas := rapid.Int32Range(0, 20).Draw(t, "replicas")
	d := rollingDeployment(replicas, randomLimit(t, "surge"), randomLimit(t, "unavailable"))
	o := Observed{Deployment: d, RunningPods: map[types.UID]int{}}
	for version := range rapid.IntRange(0, 4).Draw(t, "ReplicaSets") {
		rs := randomReplicaSet(t, d, version+1)
		o.ReplicaSets = append(o.ReplicaSets, rs)
		o.RunningPods[rs.UID] = rapid.IntRange(0, 2).Draw(t, "running")
	}
	d.Spec.Template = template(rapid.IntRange(1, 5).Draw(t, "template"))
	d.Generation = rapid.Int64Range(2, 3).Draw(t, "generation")
	if rapid.Bool().Draw(t, "recreate") {
		d.Spec.Strategy = apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
	}
	if rapid.Bool().Draw(t, "history") {
		d.Spec.RevisionHistoryLimit = ptr.To(rapid.Int32Range(0, 2).Draw(t, "limit"))
	}
	d.Spec.Paused = rapid.Bool().Draw(t, "paused")
	d.Status.Replicas = rapid.Int32Range(0, 20).Draw(t, "status.replicas")
	return o
}

func randomLimit(t *rapid.T, label string) intstr.IntOrString {
	if rapid.Bool().Draw(t, label+" in percent") {
		return intstr.FromString(fmt.Sprintf("%d%%", rapid.IntRange(0, 100).Draw(t, label)))
	}
	return intstr.FromInt(rapid.IntRange(0, 6).Draw(t, label))
}

func randomReplicaSet(t *rapid.T, d *apps.Deployment, version int) *apps.ReplicaSet {
	pods := rapid.Int32Range(0, 12).Draw(t, "size")
	rs := replicaSet(d, version, rapid.IntRange(1, 6).Draw(t, "revision"), pods, rapid.Int32Range(0, 12).Draw(t, "available"))
	rs.Status.Replicas = rapid.Int32Range(0, 12).Draw(t, "reported")
	rs.Generation = rapid.Int64Range(1, 2).Draw(t, "RS generation")
	if rapid.Bool().Draw(t, "other size noted") {
		rs.Annotations[desiredAnnotation] = fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "desired"))
		rs.Annotations[maxAnnotation] = fmt.Sprint(rapid.IntRange(0, 25).Draw(t, "max"))
	}
	if rapid.IntRange(0, 9).Draw(t, "orphan") == 0 {
		rs.OwnerReferences = nil
	}
	return rs
}

func own(d *apps.Deployment, rs *apps.ReplicaSet) {
	rs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, kind)}
}

func TestThePlanDoesNotDependOnTheOrderOfReplicaSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		shuffled := o
		shuffled.ReplicaSets = rapid.Permutation(o.ReplicaSets).Draw(t, "order")
		if diff := cmp.Diff(plan(o, start), plan(shuffled, start)); diff != "" {
			t.Fatalf("same world, other order (-want +got):\n%s", diff)
		}
	})
}

func TestAPlanNeverLooksAgainInThePast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		o.Deployment.Status.Conditions[1] = progressing(v1.ConditionTrue, "ReplicaSetUpdated", "", rapid.SampledFrom([]time.Duration{0, 600, 601, 7200}).Draw(t, "age")*time.Second)
		if at := plan(o, start).Recheck; !at.IsZero() && !at.After(start) {
			t.Fatalf("at %s the plan wants to look again at %s", start, at)
		}
	})
}

func TestThePlanChangesNothingItReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		before := carryOut(o, Plan{}, 0)
		plan(o, start)
		if diff := cmp.Diff(before, o); diff != "" {
			t.Fatalf("observed (-before +after):\n%s", diff)
		}
	})
}

// bounds are what a plan may be relied on for, whatever part of it is carried out.
type bounds struct{ pods, available int32 }

func boundsOf(o Observed) bounds {
	var b bounds
	for _, rs := range o.ReplicaSets {
		if f := asDraft(rs); rs.OwnerReferences != nil {
			b.pods += f.footprint()
			b.available += f.available()
		}
	}
	return b
}

func TestEveryPrefixKeepsFloorAndCeiling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		d := o.Deployment
		if d.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType {
			return
		}
		for _, rs := range o.ReplicaSets { // what they tell is true; see isAcknowledged
			own(d, rs)
			rs.Generation, rs.Status.AvailableReplicas = 1, min(rs.Status.AvailableReplicas, *rs.Spec.Replicas)
			rs.Status.Replicas = max(rs.Status.Replicas, rs.Status.AvailableReplicas)
		}
		l := resolveLimits(d.Spec.Strategy, *d.Spec.Replicas)
		before := boundsOf(o)
		ceiling := max(before.pods, *d.Spec.Replicas+l.surge)
		floor := min(before.available, *d.Spec.Replicas-l.unavailable)
		p := plan(o, start)
		for steps := range len(p.Actions) + 1 {
			after := boundsOf(carryOut(o, p, steps))
			if after.pods > ceiling || after.available < floor {
				t.Fatalf("after %d of %d actions %+v, before %+v; ceiling %d, floor %d", steps, len(p.Actions), after, before, ceiling, floor)
			}
		}
	})
}

func TestPausingTakesNoPodAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		d := o.Deployment
		d.Spec.Paused = true
		l := resolveLimits(d.Spec.Strategy, *d.Spec.Replicas)
		var size int32
		for _, rs := range o.ReplicaSets {
			own(d, rs)
			rs.Annotations[desiredAnnotation] = fmt.Sprint(*d.Spec.Replicas)
			size += *rs.Spec.Replicas
		}
		if size > *d.Spec.Replicas+l.surge {
			return // it has to shrink, paused or not
		}
		before := boundsOf(o).available
		if after := boundsOf(carryOut(o, plan(o, start), -1)).available; after < min(before, *d.Spec.Replicas) {
			t.Fatalf("available %d before, %d after", before, after)
		}
	})
}

func TestRecreateNeverStartsNewPodsBesideOldOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		d := o.Deployment
		d.Spec.Strategy = apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
		d.Spec.Paused = false
		p := plan(o, start)
		for _, rs := range o.ReplicaSets {
			isOld := rs.OwnerReferences != nil && !sameTemplate(&rs.Spec.Template, &d.Spec.Template)
			if isOld && (*rs.Spec.Replicas > 0 || rs.Status.Replicas > 0 || o.RunningPods[rs.UID] > 0) && growsNew(o, p) {
				t.Fatalf("%s has Pods, and the plan starts new ones: %+v", rs.Name, p.Actions)
			}
		}
	})
}

// growsNew says whether the plan gives the present template more Pods.
func growsNew(o Observed, p Plan) bool {
	return slices.ContainsFunc(p.Actions, func(action Action) bool {
		switch a := action.(type) {
		case Create:
			return *a.ReplicaSet.Spec.Replicas > 0
		case Update:
			return a.Replicas > *a.ReplicaSet.Spec.Replicas && sameTemplate(&a.ReplicaSet.Spec.Template, &o.Deployment.Spec.Template)
		}
		return false
	})
}

// A plan's status is what the next plan finds: with nothing else changed there is
// then nothing left to say or do.
func TestAPlanCarriedOutLeavesNothingToSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := randomWorld(t)
		for range 64 {
			p := plan(o, start)
			if len(p.Actions) == 0 && p.Status == nil {
				return
			}
			o = carryOut(o, p, -1)
			for _, rs := range o.ReplicaSets { // the ReplicaSet loop and the Pods follow at once
				rs.Status = replicaSet(o.Deployment, 1, 1, *rs.Spec.Replicas, *rs.Spec.Replicas).Status
				rs.Status.ObservedGeneration = rs.Generation
				o.RunningPods[rs.UID] = int(*rs.Spec.Replicas)
			}
		}
		if p := plan(o, start); len(p.Actions) > 0 || p.Status != nil {
			t.Fatalf("not at rest: %+v", p)
		}
	})
}

// simulation plays a Deployment with real Pods behind it: ReplicaSet loops that
// act and report late, Pods that become available late or never, clients that
// change their minds, crashes in the middle of plans.
type simulation struct {
	o      Observed
	actual map[types.UID]*size // what there is, not what is reported
	now    time.Time
	// the widest bounds since the world was last at rest
	ceiling, floor int32
	broken         map[string]bool // images whose Pods never become available
	draw           func(n int) int // 0 … n−1
}

func newSimulation(replicas int32, surge, unavailable intstr.IntOrString, draw func(n int) int) *simulation {
	d := rollingDeployment(replicas, surge, unavailable)
	rs := replicaSet(d, 2, 2, replicas, replicas)
	s := &simulation{
		o:      Observed{Deployment: d, ReplicaSets: []*apps.ReplicaSet{rs}, RunningPods: map[types.UID]int{}},
		actual: map[types.UID]*size{rs.UID: {replicas, replicas}},
		now:    start, broken: map[string]bool{}, draw: draw,
	}
	s.bound(true)
	return s
}

// bound widens the bounds by the present ones, or begins with these.
func (s *simulation) bound(anew bool) {
	d := s.o.Deployment
	l := resolveLimits(d.Spec.Strategy, *d.Spec.Replicas)
	ceiling, floor := *d.Spec.Replicas+l.surge, *d.Spec.Replicas-l.unavailable
	if anew {
		s.ceiling, s.floor = ceiling, floor
	}
	s.ceiling, s.floor = max(s.ceiling, ceiling), min(s.floor, floor)
}

func (s *simulation) syncDeployment(crash bool) Plan {
	p := plan(s.o, s.now)
	steps := -1
	if crash {
		steps = s.draw(len(p.Actions) + 1)
	}
	s.o = carryOut(s.o, p, steps)
	for _, rs := range s.o.ReplicaSets {
		if s.actual[rs.UID] == nil {
			s.actual[rs.UID] = &size{}
		}
	}
	return p
}

// syncReplicaSet reports what there was before it acts, and acts in part or whole.
func (s *simulation) syncReplicaSet(rs *apps.ReplicaSet, whole bool) {
	a := s.actual[rs.UID]
	rs.Status.ObservedGeneration = rs.Generation
	rs.Status.Replicas, rs.Status.ReadyReplicas, rs.Status.AvailableReplicas = a.pods, a.available, a.available
	rs.Status.TerminatingReplicas = ptr.To[int32](0)
	change := *rs.Spec.Replicas - a.pods
	if !whole && change > 0 {
		change = int32(s.draw(int(change) + 1))
	} else if !whole {
		change = -int32(s.draw(int(-change) + 1))
	}
	a.pods += change
	a.available = min(a.available, a.pods) // those that are not available go first
}

func (s *simulation) startPods(rs *apps.ReplicaSet, whole bool) {
	a := s.actual[rs.UID]
	if s.broken[rs.Spec.Template.Spec.Containers[0].Image] {
		return
	}
	more := int(a.pods - a.available)
	if !whole {
		more = s.draw(more + 1)
	}
	a.available += int32(more)
}

func (s *simulation) total() size {
	var sum size
	for _, a := range s.actual {
		sum.pods += a.pods
		sum.available += a.available
	}
	return sum
}

// step lets something happen.
func (s *simulation) step() {
	s.now = s.now.Add(time.Duration(s.draw(3)) * time.Second)
	rs := s.o.ReplicaSets[s.draw(len(s.o.ReplicaSets))]
	switch s.draw(4) {
	case 0:
		s.syncDeployment(s.draw(3) == 0)
	case 1:
		s.syncReplicaSet(rs, s.draw(2) == 0)
	default:
		s.startPods(rs, s.draw(2) == 0)
	}
}

// settle lets everything happen until nothing is left to do.
func (s *simulation) settle() error {
	for range 200 {
		s.now = s.now.Add(time.Second)
		for _, rs := range s.o.ReplicaSets {
			s.syncReplicaSet(rs, true)
			s.startPods(rs, true)
			s.syncReplicaSet(rs, true) // reports what the first one did
		}
		p := s.syncDeployment(false)
		if err := s.check(); err != nil {
			return err
		}
		if len(p.Actions) == 0 && p.Status == nil {
			return nil
		}
	}
	return fmt.Errorf("still busy: %+v", plan(s.o, s.now))
}

func (s *simulation) check() error {
	if sum := s.total(); sum.pods > s.ceiling || sum.available < s.floor {
		detail := ""
		for _, rs := range s.o.ReplicaSets {
			detail += fmt.Sprintf("\n%s: wants %d, generation %d, reports %d/%d of generation %d, has %+v", rs.Name, *rs.Spec.Replicas,
				rs.Generation, rs.Status.AvailableReplicas, rs.Status.Replicas, rs.Status.ObservedGeneration, *s.actual[rs.UID])
		}
		return fmt.Errorf("%+v with ceiling %d, floor %d%s", sum, s.ceiling, s.floor, detail)
	}
	return nil
}

// change is something a client does.
func (s *simulation) change(withScaling bool) {
	kinds := 3
	if withScaling {
		kinds = 4
	}
	d := s.o.Deployment
	switch s.draw(kinds) {
	case 0, 1:
		version := 1 + s.draw(6)
		rollTo(&s.o, version)
		if s.draw(3) == 0 && version != 2 {
			s.broken[fmt.Sprintf("web:%d", version)] = true
		}
	case 2:
		d.Spec.Paused = !d.Spec.Paused
		d.Generation++
	case 3:
		scaleTo(&s.o, int32(s.draw(25)))
	}
	s.bound(false)
}

// finally the client wants version 2, which works.
func (s *simulation) finish(t *rapid.T) {
	rollTo(&s.o, 2)
	s.o.Deployment.Spec.Paused = false
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	d := s.o.Deployment
	status := d.Status
	want := *d.Spec.Replicas
	if status.ObservedGeneration != d.Generation || status.Replicas != want || status.UpdatedReplicas != want || status.AvailableReplicas != want {
		t.Fatalf("at rest with %+v, want %d Pods", status, want)
	}
	if reason := find(status.Conditions, apps.DeploymentProgressing).Reason; reason != reasonDone {
		t.Fatalf("at rest with Progressing for reason %s", reason)
	}
}

func simulate(t *rapid.T, withScaling bool) {
	draw := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).IntN
	s := newSimulation(rapid.Int32Range(0, 20).Draw(t, "replicas"), randomLimit(t, "surge"), randomLimit(t, "unavailable"), draw)
	for range rapid.IntRange(1, 6).Draw(t, "changes") {
		s.change(withScaling)
		for range draw(40) {
			s.step()
			if err := s.check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.finish(t)
}

func TestRolloutsKeepFloorAndCeilingAndConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { simulate(t, false) })
}

func TestRolloutsScaledInTheMiddleConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { simulate(t, true) })
}

// k#95498: 15 replicas, 25 %/25 %, slow shutdown: 22 Pods where 19 is the limit.
// Pods that are being deleted do not count against the limit, and are told.
func TestFifteenReplicasNeverExceedNineteen(t *testing.T) {
	for seed := range uint64(200) {
		s := newSimulation(15, intstr.FromString("25%"), intstr.FromString("25%"), rand.New(rand.NewPCG(seed, 1)).IntN)
		if s.ceiling != 19 || s.floor != 12 {
			t.Fatalf("ceiling %d, floor %d", s.ceiling, s.floor)
		}
		rollTo(&s.o, 3)
		for range 300 {
			s.step()
			if err := s.check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if err := s.settle(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got := s.o.Deployment.Status; got.UpdatedReplicas != 15 || got.AvailableReplicas != 15 {
			t.Fatalf("seed %d: at rest with %+v", seed, got)
		}
	}
}

func BenchmarkPlanAtRestWithHistory(b *testing.B) {
	o := settled()
	o.ReplicaSets = nil
	for version := range 11 {
		o.ReplicaSets = append(o.ReplicaSets, replicaSet(o.Deployment, version+20, version+1, 0, 0))
	}
	o.ReplicaSets[10] = replicaSet(o.Deployment, 2, 11, 10, 10)
	o.Deployment.Annotations[revisionAnnotation] = "11"
	b.ReportAllocs()
	for b.Loop() {
		if p := plan(o, start); len(p.Actions) > 0 || p.Status != nil {
			b.Fatalf("not at rest: %+v", p)
		}
	}
}

func BenchmarkPlanNewTemplate(b *testing.B) {
	o := settled()
	rollTo(&o, 3)
	b.ReportAllocs()
	for b.Loop() {
		plan(o, start)
	}
}

package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

var podResource = schema.GroupResource{Resource: "pods"}

// simulation is a whole cluster in one goroutine: the true objects, a cache that
// lags behind them by undelivered events, and the real scheduler between both.
// Every choice (which event, which key, which fault) is drawn.
type simulation struct {
	t       *rapid.T
	pods    map[string]*v1.Pod // the truth, by key
	nodes   map[string]*v1.Node
	store   cache.Store
	events  []func() // what the cache has not seen
	queue   map[string]bool
	later   map[string]bool
	faults  bool
	created int
	version int
	sched   *Scheduler
}

func newSimulation(t *rapid.T) *simulation {
	sim := &simulation{
		t: t, pods: map[string]*v1.Pod{}, nodes: map[string]*v1.Node{},
		store: cache.NewStore(cache.MetaNamespaceKeyFunc), queue: map[string]bool{}, later: map[string]bool{}, faults: true,
	}
	sim.sched = &Scheduler{
		api: sim, events: record.NewFakeRecorder(0), clock: clocktesting.NewFakeClock(time.Time{}),
		log: slog.New(slog.DiscardHandler), store: sim.store, turns: newTurnstile(), cluster: NewCluster(),
		waiting: newWaiting(), assumed: map[types.UID]*assumption{}, told: map[types.UID]told{},
		again: func(key string) { sim.queue[key] = true },
		later: func(key string, _ time.Time) { sim.later[key] = true },
	}
	sim.sched.events.(*record.FakeRecorder).Events = nil // discards
	return sim
}

// set changes the truth and notes the event for the cache.
func (sim *simulation) set(pod *v1.Pod) {
	sim.version++
	pod.ResourceVersion = strconv.Itoa(sim.version)
	sim.pods["default/"+pod.Name] = pod
	sim.events = append(sim.events, func() {
		handler := sim.sched.podHandler()
		old, had, _ := sim.store.Get(pod)
		_ = sim.store.Add(pod)
		if had {
			handler.OnUpdate(old, pod)
		} else {
			handler.OnAdd(pod, false)
		}
	})
}

func (sim *simulation) remove(pod *v1.Pod) {
	delete(sim.pods, "default/"+pod.Name)
	sim.events = append(sim.events, func() {
		_ = sim.store.Delete(pod)
		sim.sched.podHandler().OnDelete(cache.DeletedFinalStateUnknown{Obj: pod})
	})
}

func (sim *simulation) setNode(node *v1.Node) {
	old := sim.nodes[node.Name]
	sim.nodes[node.Name] = node
	sim.events = append(sim.events, func() {
		if old != nil {
			sim.sched.nodeHandler().OnUpdate(old, node)
		} else {
			sim.sched.nodeHandler().OnAdd(node, false)
		}
	})
}

// Bind is the API server's binding, with answers that get lost and refusals.
func (sim *simulation) Bind(_ context.Context, b *v1.Binding) error {
	pod := sim.pods["default/"+b.Name]
	fault := 0
	if sim.faults {
		fault = rapid.IntRange(0, 5).Draw(sim.t, "bind fault")
	}
	switch {
	case fault == 1:
		return errors.New("the request never arrived")
	case fault == 2:
		return apierrors.NewForbidden(podResource, b.Name, errors.New("not now"))
	case pod == nil:
		return apierrors.NewNotFound(podResource, b.Name)
	case pod.UID != b.UID, pod.Spec.NodeName != "":
		return apierrors.NewConflict(podResource, b.Name, errors.New("is already assigned, or another"))
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = b.Target.Name
	sim.set(bound)
	sim.checkNode(b.Target.Name)
	if fault == 3 {
		return errors.New("the answer was lost")
	}
	return nil
}

func (sim *simulation) Get(_ context.Context, namespace, name string) (*v1.Pod, error) {
	if pod := sim.pods[namespace+"/"+name]; pod != nil {
		return pod, nil
	}
	return nil, apierrors.NewNotFound(podResource, name)
}

func (sim *simulation) PatchStatus(_ context.Context, namespace, name string, patch []byte) error {
	pod := sim.pods[namespace+"/"+name]
	var change struct {
		Metadata struct{ ResourceVersion string }
		Status   v1.PodStatus
	}
	if err := json.Unmarshal(patch, &change); err != nil {
		return err
	}
	switch {
	case pod == nil:
		return apierrors.NewNotFound(podResource, name)
	case pod.ResourceVersion != change.Metadata.ResourceVersion:
		return apierrors.NewConflict(podResource, name, errors.New("modified"))
	}
	pod = pod.DeepCopy()
	pod.Status.Conditions = change.Status.Conditions
	sim.set(pod)
	return nil
}

// checkNode fails when a node is over-committed in truth, right after a binding.
func (sim *simulation) checkNode(name string) {
	node := sim.nodes[name]
	if node == nil {
		return // gone while the cache still shows it
	}
	here := podsOn(slices.Collect(maps.Values(sim.pods)), name)
	for i, pod := range here {
		others := slices.Delete(slices.Clone(here), i, i+1)
		switch why := objection(pod, node, others); why {
		case "", "cordoned": // the cordon may be news to the cache
		default:
			sim.t.Fatalf("%s on %s: %s", pod.Name, name, why)
		}
	}
}

// step does one thing, drawn.
func (sim *simulation) step() {
	keys := slices.Sorted(maps.Keys(sim.pods))
	switch choice := rapid.IntRange(0, 11).Draw(sim.t, "step"); {
	case choice <= 2:
		pod := drawPod(sim.t, fmt.Sprintf("pod-%d", sim.created%15))
		pod.UID = types.UID(fmt.Sprint("uid-", sim.created))
		sim.created++
		// Over an old Pod of this name, the cache sees an update to another UID.
		if sim.pods["default/"+pod.Name] == nil || rapid.IntRange(0, 2).Draw(sim.t, "anew") == 0 {
			sim.set(pod)
		}
	case choice == 3 && rapid.IntRange(0, 3).Draw(sim.t, "node event") == 0:
		name := fmt.Sprintf("node-%d", rapid.IntRange(0, 2).Draw(sim.t, "node"))
		if sim.nodes[name] == nil {
			sim.setNode(aNode(name, allocatable("pods", "3"), labelled("disk", []string{"ssd", "hdd"}[len(sim.nodes)%2]),
				allocatable("example.com/a", "1")))
		} else {
			flipped := sim.nodes[name].DeepCopy()
			flipped.Spec.Unschedulable = !flipped.Spec.Unschedulable
			sim.setNode(flipped)
		}
	case choice <= 4 && len(keys) > 0:
		sim.remove(sim.pods[rapid.SampledFrom(keys).Draw(sim.t, "delete")])
	case choice <= 7:
		sim.deliver()
	default:
		sim.work()
	}
}

func (sim *simulation) deliver() {
	if len(sim.events) > 0 {
		event := sim.events[0]
		sim.events = sim.events[1:]
		event()
	}
}

func (sim *simulation) work() {
	if len(sim.queue) == 0 {
		return
	}
	key := rapid.SampledFrom(slices.Sorted(maps.Keys(sim.queue))).Draw(sim.t, "key")
	delete(sim.queue, key)
	if _, err := sim.sched.Sync(context.Background(), key); err != nil {
		sim.queue[key] = true
	}
}

// settle ends the faults and works until nothing is left to do. What would be
// done later, by time, is not done.
func (sim *simulation) settle() {
	sim.faults = false
	for range 10000 {
		if len(sim.events) == 0 && len(sim.queue) == 0 {
			return
		}
		for len(sim.events) > 0 {
			sim.deliver()
		}
		for _, key := range slices.Sorted(maps.Keys(sim.queue)) {
			delete(sim.queue, key)
			if _, err := sim.sched.Sync(context.Background(), key); err != nil {
				sim.queue[key] = true
			}
		}
	}
	sim.t.Fatalf("does not come to rest: queue %v", sim.queue)
}

// At all times no node is over-committed; once faults stop, no Pod waits that
// some node could run, without any timer having helped, and every Pod that waits
// says so.
func TestSchedulerSurvivesFaultsAndLeavesNoPodBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sim := newSimulation(t)
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			for range rapid.IntRange(0, 60).Draw(t, "steps") {
				sim.step()
			}
			sim.settle()
			sim.checkPlaced()
			sim.checkMemory()
			sim.faults = true
		}
	})
}

// checkPlaced fails when a Pod waits that some node could run, or does not say
// that it waits.
func (sim *simulation) checkPlaced() {
	all := slices.Collect(maps.Values(sim.pods))
	for _, key := range slices.Sorted(maps.Keys(sim.pods)) {
		pod := sim.pods[key]
		if pod.Spec.NodeName != "" {
			continue
		}
		for name, node := range sim.nodes {
			if objection(pod, node, podsOn(all, name)) == "" {
				sim.t.Fatalf("%s waits although it fits %s", key, name)
			}
		}
		if len(pod.Status.Conditions) != 1 || pod.Status.Conditions[0].Reason != v1.PodReasonUnschedulable {
			sim.t.Fatalf("%s waits without saying so: %+v", key, pod.Status.Conditions)
		}
	}
}

// checkMemory fails when the scheduler's sums differ from ones made afresh, or
// it remembers what is gone.
func (sim *simulation) checkMemory() {
	fresh := world{nodes: slices.Collect(maps.Values(sim.nodes)), pods: slices.Collect(maps.Values(sim.pods))}.cluster()
	for name, want := range fresh.byName {
		got := sim.sched.cluster.byName[name]
		if got == nil || got.pods != want.pods || !got.requested.equal(want.requested) ||
			got.scoreCPU != want.scoreCPU || !maps.Equal(got.ports, want.ports) || !maps.Equal(got.siblings, want.siblings) {
			sim.t.Fatalf("%s: counted %+v, want %+v", name, got, want)
		}
	}
	if len(sim.sched.assumed) != 0 {
		sim.t.Fatalf("still assumed: %v", sim.sched.assumed)
	}
	left := maps.Clone(sim.sched.told)
	for _, pod := range sim.pods {
		delete(left, pod.UID)
	}
	if len(left) != 0 {
		sim.t.Fatalf("remembers Pods that are gone: %v", left)
	}
	for key := range sim.sched.waiting.shapes {
		if sim.pods[key] == nil {
			sim.t.Fatalf("%s is gone and still waits", key)
		}
	}
}

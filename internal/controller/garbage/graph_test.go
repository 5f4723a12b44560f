package garbage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// atRest is a world with a ReplicaSet and n Pods, and a loop that has seen it.
func atRest(t *testing.T, n int) (*world, *run, *Object) {
	t.Helper()
	w := newWorld()
	rs := w.create(replicaSets, "shop", "web")
	for i := range n {
		w.create(pods, "shop", fmt.Sprintf("web-%d", i), blockingRef(replicaSets, "web", rs.UID))
	}
	r := w.start()
	if writes, ok := r.rest(); writes != 0 || !ok {
		t.Fatalf("a healthy world takes %d writes, at rest: %v", writes, ok)
	}
	return w, r, rs
}

// calls counts what the loop asks of the server.
func calls(w *world) map[string]int {
	n := map[string]int{}
	w.fail = func(verb string) error {
		n[verb]++
		return nil
	}
	return n
}

func TestAHealthyRolloutCostsNoRequest(t *testing.T) {
	w, r, rs := atRest(t, 3)
	asked := calls(w)
	pod := w.create(pods, "shop", "web-3", blockingRef(replicaSets, "web", rs.UID))
	for range 5 {
		w.changed(pod) // its status
	}
	w.erase(w.named(pods, "shop", "web-0"), metav1.DeletePropagationBackground)
	for r.deliverAll() {
		if len(r.queue) > 0 {
			t.Errorf("woken: %v", r.queue)
		}
	}
	if diff := cmp.Diff(map[string]int{}, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestTheEndOfAnOwnerCostsOneReadAndOneDeletePerDependent(t *testing.T) {
	w, r, rs := atRest(t, 50)
	asked := calls(w)
	w.erase(rs, metav1.DeletePropagationBackground)
	if _, ok := r.rest(); !ok || len(w.objects) != 0 {
		t.Fatalf("left: %v", w.sorted())
	}
	if diff := cmp.Diff(map[string]int{"get": 1, "delete": 50}, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestAnOwnerSeenLaterThanItsDependentIsWaitedForNotReadFor(t *testing.T) {
	w, r, _ := atRest(t, 0)
	asked := calls(w)
	late := w.create(replicaSets, "shop", "late")
	w.create(pods, "shop", "late-1", blockingRef(replicaSets, "late", late.UID))
	r.deliver(pods)
	if len(r.queue) > 0 || len(r.later) != 1 {
		t.Fatalf("in line: %v, later: %v", r.queue, r.later)
	}
	r.deliver(replicaSets)
	if _, ok := r.rest(); !ok {
		t.Fatal("no rest")
	}
	if diff := cmp.Diff(map[string]int{}, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestAWaitingOwnerIsWokenByTheLastOfItsDependents(t *testing.T) {
	w, r, rs := atRest(t, 20)
	w.erase(rs, metav1.DeletePropagationForeground)
	for r.deliverAll() || len(r.queue) > 0 {
		if len(r.queue) > 0 {
			r.work(0)
		}
		if len(w.objects) == 1 {
			break
		}
	}
	r.queue = nil
	woken := 0
	for r.deliver(pods) {
		woken += len(r.queue)
	}
	if woken != 1 || r.queue[0] != string(rs.UID) {
		t.Errorf("woken %d times: %v", woken, r.queue)
	}
}

func TestNothingIsJudgedBeforeEveryKindIsListedOrHasHadItsTime(t *testing.T) {
	w := newWorld()
	w.create(pods, "shop", "web-1", ref(replicaSets, "web", "gone"))
	r := w.start()
	for _, kind := range []Kind{pods, nodes, deployments} {
		r.deliver(kind)
	}
	if len(r.queue)+len(r.later) > 0 {
		t.Fatalf("woken on half a graph: %v %v", r.queue, r.later)
	}
	r.clock.Step(listGrace - time.Second)
	r.c.wake(r.c.graph.settleIfComplete(r.clock.Now()))
	if len(r.later) > 0 {
		t.Fatal("replicasets had a second left to answer")
	}
	r.clock.Step(time.Second)
	r.c.wake(r.c.graph.settleIfComplete(r.clock.Now()))
	if _, ok := r.rest(); !ok || len(w.objects) != 0 {
		t.Fatalf("the Pod without an owner is left: %v", w.sorted())
	}
}

func TestAnOwnerInAnotherNamespaceIsReported(t *testing.T) {
	w, r, rs := atRest(t, 0)
	w.create(pods, "bank", "stray", ref(replicaSets, "web", rs.UID))
	r.rest()
	want := `Warning OwnerRefInvalidNamespace ownerRef [apps/v1/ReplicaSet, namespace: bank, name: web, uid: ` + string(rs.UID) + `] does not exist in namespace "bank"`
	select {
	case got := <-r.events.Events:
		if got != want {
			t.Errorf("event\n got %s\nwant %s", got, want)
		}
	default:
		t.Error("no event")
	}
	if w.named(pods, "bank", "stray") != nil || w.named(replicaSets, "shop", "web") == nil {
		t.Errorf("left: %v", w.sorted())
	}
}

func TestAKindThatIsNoLongerServedTakesNobodyAlong(t *testing.T) {
	w, r, _ := atRest(t, 2)
	w.kinds = []Kind{deployments, pods, nodes}
	r.c.owners.setCatalog(w.catalog())
	r.c.wake(r.c.graph.forget(r.kindOf[replicaSets.Resource]))
	r.rest()
	if w.named(pods, "shop", "web-0") == nil || w.named(pods, "shop", "web-1") == nil {
		t.Errorf("Pods were deleted with the kind of their owner: %v", w.sorted())
	}
	if w := r.c.graph.put(r.kindOf[replicaSets.Resource], metadataFor(Object{Kind: replicaSets, UID: "late"})); len(w.now) > 0 || r.c.graph.nodes["late"] != nil {
		t.Error("the watch of a forgotten kind still has a say")
	}
}

func TestASyncAsksForARecheckOnlyWhileItMust(t *testing.T) {
	w, r, _ := atRest(t, 0)
	pod := w.create(pods, "shop", "odd", metav1.OwnerReference{APIVersion: "v1", Kind: "Widget", Name: "x", UID: "x"})
	r.deliverAll()
	if at, err := r.c.Sync(context.Background(), "x"); err != nil || !at.Equal(r.clock.Now().Add(unseenRecheck)) {
		t.Errorf("an owner that nobody serves: recheck %v, %v", at, err)
	}
	pod.Owners = nil
	w.changed(pod)
	r.deliverAll()
	if at, err := r.c.Sync(context.Background(), "x"); err != nil || !at.IsZero() {
		t.Errorf("nobody names it any more: recheck %v, %v", at, err)
	}
}

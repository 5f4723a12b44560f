package replicaset

import (
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// routes reaches some Pods, and notes who was asked about.
type routes struct {
	reached map[types.UID]bool
	asked   []string
	tell    func(types.NamespacedName)
}

func (r *routes) IsRouted(pod *v1.Pod) bool {
	r.asked = append(r.asked, pod.Name)
	return r.reached[pod.UID]
}

func (r *routes) OnRouted(f func(types.NamespacedName)) { r.tell = f }

func TestOnlyPodsThatBecameReadyAreAskedAbout(t *testing.T) {
	fresh, reached, old, ends, waits := readyPod("fresh"), readyPod("reached"), readyPod("old"), readyPod("ends"), readyPod("waits")
	for _, pod := range []*v1.Pod{fresh, reached, ends} {
		readyFor(time.Second)(pod)
	}
	terminating(ends)
	unready(waits)
	r := &routes{reached: map[types.UID]bool{"reached": true}}
	got := unrouted(r, []*v1.Pod{fresh, reached, old, ends, waits}, now)
	if !maps.Equal(got, map[types.UID]bool{"fresh": true}) {
		t.Errorf("unrouted: %v, want fresh", got)
	}
	if want := []string{"fresh", "reached"}; !slices.Equal(r.asked, want) {
		t.Errorf("asked about %v, want %v", r.asked, want)
	}
	if got := unrouted(nil, []*v1.Pod{fresh}, now); got != nil {
		t.Errorf("without a routing: %v, want none", got)
	}
}

func TestARoutedPodWakesItsOwner(t *testing.T) {
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	orphan := readyPod("orphan")
	orphaned(orphan)
	for _, pod := range []*v1.Pod{readyPod("a"), orphan} {
		if err := pods.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	var woken []string
	r := &routes{}
	waker{view: snapshots{pods: pods}, wake: func(key string) { woken = append(woken, key) }}.watchRoutes(r)
	for _, name := range []string{"gone", "orphan", "a"} {
		r.tell(types.NamespacedName{Namespace: "default", Name: name})
	}
	if want := []string{"default/web"}; !slices.Equal(woken, want) {
		t.Errorf("woken %v, want %v", woken, want)
	}
}

func TestAPodThatRequestsDoNotReachGoesFirst(t *testing.T) {
	fresh, available := readyPod("z"), readyPod("a")
	chain(readyFor(time.Second), annotate("9"), onNode("lonely"))(fresh)
	chain(readyFor(time.Second), onNode("crowded"))(available)
	o := settled()
	o.PodsOnNode = map[string]int{"crowded": 3, "lonely": 1}
	o.Unrouted = map[types.UID]bool{"z": true}
	if got := firstToGo(o, []*v1.Pod{available, fresh}, 1, now); got[0] != fresh {
		t.Errorf("Pod %s goes first: requests would reach none", got[0].Name)
	}
}

package mirror

import (
	"context"
	"errors"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
	"mend/internal/view"
)

// taker takes what is created, and has no view told of it.
type taker struct {
	kubernetes.Interface
	discoveryclient.DiscoveryV1Interface
	discoveryclient.EndpointSliceInterface
	made int
}

func (t *taker) DiscoveryV1() discoveryclient.DiscoveryV1Interface            { return t }
func (t *taker) EndpointSlices(string) discoveryclient.EndpointSliceInterface { return t }
func (t *taker) Create(_ context.Context, s *discovery.EndpointSlice, _ metav1.CreateOptions) (*discovery.EndpointSlice, error) {
	t.made++
	s = s.DeepCopy()
	s.Name, s.ResourceVersion = "made", strconv.Itoa(7*t.made)
	return s, nil
}

// A slice that somebody deletes before the view shows it is told by no event: a watch that
// starts over in between has nothing to tell. So the loop looks again by itself.
func TestLooksAgainUntilTheViewHasItsWrites(t *testing.T) {
	stores := map[string]cache.Indexer{}
	for _, kind := range []string{"endpoints", "services", "slices"} {
		stores[kind] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	e := endpoints("10.0.0.1 at 80")
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
	for kind, obj := range map[string]any{"endpoints": e, "services": service} {
		if err := stores[kind].Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	api := &taker{}
	c := &controller{
		client: api, endpoints: corelisters.NewEndpointsLister(stores["endpoints"]), services: corelisters.NewServiceLister(stores["services"]),
		slices: discoverylisters.NewEndpointSliceLister(stores["slices"]),
		writes: view.NewWrites(map[string]cache.Store{"endpointslices": stores["slices"]}),
	}
	key := cache.MetaObjectToName(e).String()
	if _, err := c.Sync(t.Context(), key); !errors.Is(err, loop.ErrStale) || api.made != 1 {
		t.Fatalf("Sync = %v after %d slices, want one and %v", err, api.made, loop.ErrStale)
	}
	// The list shows that it was there, by its version, and is gone.
	if err := stores["slices"].Replace(nil, "8"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sync(t.Context(), key); !errors.Is(err, loop.ErrStale) || api.made != 2 {
		t.Fatalf("Sync = %v after %d slices, want a second one and %v", err, api.made, loop.ErrStale)
	}
}

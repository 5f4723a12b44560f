package apiservice

import (
	"context"
	"errors"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
	"mend/internal/view"
)

// taker takes what is created, and has no view told of it.
type taker struct {
	kubernetes.Interface
	version int
}

func (t *taker) CoreV1() coreclient.CoreV1Interface                { return coreTaker{taker: t} }
func (t *taker) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return discoveryTaker{taker: t} }

type coreTaker struct {
	coreclient.CoreV1Interface
	taker *taker
}

func (c coreTaker) Services(string) coreclient.ServiceInterface { return serviceTaker{taker: c.taker} }
func (c coreTaker) Endpoints(string) coreclient.EndpointsInterface {
	return endpointsTaker{taker: c.taker}
}

type discoveryTaker struct {
	discoveryclient.DiscoveryV1Interface
	taker *taker
}

func (d discoveryTaker) EndpointSlices(string) discoveryclient.EndpointSliceInterface {
	return sliceTaker{taker: d.taker}
}

func (t *taker) take(obj metav1.Object) {
	t.version++
	obj.SetResourceVersion(strconv.Itoa(t.version))
}

type serviceTaker struct {
	coreclient.ServiceInterface
	taker *taker
}

func (s serviceTaker) Create(_ context.Context, obj *v1.Service, _ metav1.CreateOptions) (*v1.Service, error) {
	s.taker.take(obj)
	return obj, nil
}

type endpointsTaker struct {
	coreclient.EndpointsInterface
	taker *taker
}

func (e endpointsTaker) Create(_ context.Context, obj *v1.Endpoints, _ metav1.CreateOptions) (*v1.Endpoints, error) {
	e.taker.take(obj)
	return obj, nil
}

type sliceTaker struct {
	discoveryclient.EndpointSliceInterface
	taker *taker
}

func (s sliceTaker) Create(_ context.Context, obj *discovery.EndpointSlice, _ metav1.CreateOptions) (*discovery.EndpointSlice, error) {
	s.taker.take(obj)
	return obj, nil
}

// An object that somebody deletes before the view shows it is told by no event: a watch that
// starts over in between has nothing to tell. So the loop looks again by itself.
func TestLooksAgainUntilTheViewHasItsWrites(t *testing.T) {
	stores := map[string]cache.Store{}
	for _, kind := range []string{"services", "endpoints", "endpointslices"} {
		stores[kind] = cache.NewStore(cache.MetaNamespaceKeyFunc)
	}
	api := &taker{}
	c := &controller{
		config: Config{Addresses: []string{"192.0.2.1"}, Port: 7443}, client: api, writes: view.NewWrites(stores),
		services: stores["services"], endpoints: stores["endpoints"], endpointSlices: stores["endpointslices"],
	}
	if _, err := c.Sync(t.Context(), key); !errors.Is(err, loop.ErrStale) || api.version != 3 {
		t.Fatalf("Sync = %v after %d objects, want three and %v", err, api.version, loop.ErrStale)
	}
	// Lists show that the three were there, by their version, and are gone.
	for _, store := range stores {
		if err := store.Replace(nil, "3"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Sync(t.Context(), key); !errors.Is(err, loop.ErrStale) || api.version != 6 {
		t.Fatalf("Sync = %v after %d objects, want three more and %v", err, api.version, loop.ErrStale)
	}
}

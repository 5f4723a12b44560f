package sim

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/tools/cache"
)

func (c client) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return discoveryV1{life: c.life} }

type discoveryV1 struct {
	discoveryclient.DiscoveryV1Interface
	life *life
}

func (d discoveryV1) EndpointSlices(ns string) discoveryclient.EndpointSliceInterface {
	return sliceClient{typed: typed[*discovery.EndpointSlice]{d.life, endpointSlices, ns}}
}

func (c client) NetworkingV1() networkingclient.NetworkingV1Interface {
	return networkingV1{life: c.life}
}

type networkingV1 struct {
	networkingclient.NetworkingV1Interface
	life *life
}

func (n networkingV1) ServiceCIDRs() networkingclient.ServiceCIDRInterface {
	return rangeClient{typed: typed[*networking.ServiceCIDR]{n.life, serviceCIDRs, ""}}
}

func (n networkingV1) IPAddresses() networkingclient.IPAddressInterface {
	return recordClient{typed: typed[*networking.IPAddress]{n.life, ipAddresses, ""}}
}

func (c coreV1) Services(ns string) coreclient.ServiceInterface {
	return serviceClient{typed: typed[*v1.Service]{c.life, services, ns}}
}

func (c coreV1) Endpoints(ns string) coreclient.EndpointsInterface {
	return endpointsClient{typed: typed[*v1.Endpoints]{c.life, endpointsRes, ns}}
}

type (
	restOfServices  struct{ coreclient.ServiceInterface }
	restOfEndpoints struct{ coreclient.EndpointsInterface }
	restOfSlices    struct {
		discoveryclient.EndpointSliceInterface
	}
	restOfRanges struct {
		networkingclient.ServiceCIDRInterface
	}
	restOfRecords struct {
		networkingclient.IPAddressInterface
	}

	rangeClient struct {
		typed[*networking.ServiceCIDR]
		restOfRanges
	}
	recordClient struct {
		typed[*networking.IPAddress]
		restOfRecords
	}
	serviceClient struct {
		typed[*v1.Service]
		restOfServices
	}
	endpointsClient struct {
		typed[*v1.Endpoints]
		restOfEndpoints
	}
	sliceClient struct {
		typed[*discovery.EndpointSlice]
		restOfSlices
	}
)

// Create and Update sort the endpoints: the library that the loop uses takes them
// from a map.
func (c sliceClient) Create(ctx context.Context, slice *discovery.EndpointSlice, opts metav1.CreateOptions) (*discovery.EndpointSlice, error) {
	return c.typed.Create(ctx, inOrder(slice), opts)
}

func (c sliceClient) Update(ctx context.Context, slice *discovery.EndpointSlice, opts metav1.UpdateOptions) (*discovery.EndpointSlice, error) {
	return c.typed.Update(ctx, inOrder(slice), opts)
}

func inOrder(slice *discovery.EndpointSlice) *discovery.EndpointSlice {
	slice = clone(slice)
	slices.SortFunc(slice.Endpoints, func(a, b discovery.Endpoint) int { return cmp.Compare(a.Addresses[0], b.Addresses[0]) })
	return slice
}

// sliceChanged says whether a slice gets a new generation.
func sliceChanged(o, n *discovery.EndpointSlice) bool {
	return !equality.Semantic.DeepEqual(o.Endpoints, n.Endpoints) || !equality.Semantic.DeepEqual(o.Ports, n.Ports) ||
		!equality.Semantic.DeepEqual(o.Labels, n.Labels)
}

// sorted is an indexer whose lists are in order: that library goes by the order of
// the slices that it is given.
type sorted struct{ cache.Indexer }

func (s sorted) Index(name string, obj any) ([]any, error) {
	return inOrderOfKeys(s.Indexer.Index(name, obj))
}

func (s sorted) ByIndex(name, value string) ([]any, error) {
	return inOrderOfKeys(s.Indexer.ByIndex(name, value))
}

func inOrderOfKeys(list []any, err error) ([]any, error) {
	slices.SortFunc(list, func(a, b any) int { return compare(keyOf(a.(object)), keyOf(b.(object))) })
	return list, err
}

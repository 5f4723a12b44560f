package endpointslice

import (
	"context"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/endpointslice"

	"mend/internal/view"
)

const resource = "endpointslices"

// noting is the client that upstream's library writes with: it notes what was written,
// by Service, since the library tells nobody.
type noting struct {
	kubernetes.Interface
	writes *view.Writes
	slices discoverylisters.EndpointSliceLister
}

func (n noting) DiscoveryV1() discoveryclient.DiscoveryV1Interface {
	return notingDiscovery{n.Interface.DiscoveryV1(), n}
}

type notingDiscovery struct {
	discoveryclient.DiscoveryV1Interface
	noting noting
}

func (d notingDiscovery) EndpointSlices(namespace string) discoveryclient.EndpointSliceInterface {
	return notingSlices{d.DiscoveryV1Interface.EndpointSlices(namespace), d.noting, namespace}
}

type notingSlices struct {
	discoveryclient.EndpointSliceInterface
	noting    noting
	namespace string
}

func (s notingSlices) Create(ctx context.Context, slice *discovery.EndpointSlice, opts metav1.CreateOptions) (*discovery.EndpointSlice, error) {
	made, err := s.EndpointSliceInterface.Create(ctx, slice, opts)
	return s.wrote(made, err)
}

func (s notingSlices) Update(ctx context.Context, slice *discovery.EndpointSlice, opts metav1.UpdateOptions) (*discovery.EndpointSlice, error) {
	made, err := s.EndpointSliceInterface.Update(ctx, slice, opts)
	return s.wrote(made, err)
}

func (s notingSlices) wrote(made *discovery.EndpointSlice, err error) (*discovery.EndpointSlice, error) {
	if err != nil {
		return made, err
	}
	if key, err := endpointslice.ServiceControllerKey(made); err == nil {
		s.noting.writes.Wrote(key, resource, made)
	}
	return made, nil
}

func (s notingSlices) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	gone, unknown := s.noting.slices.EndpointSlices(s.namespace).Get(name)
	if err := s.EndpointSliceInterface.Delete(ctx, name, opts); err != nil || unknown != nil {
		return err
	}
	if key, err := endpointslice.ServiceControllerKey(gone); err == nil {
		s.noting.writes.Deleted(key, resource, gone)
	}
	return nil
}

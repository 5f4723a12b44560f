package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"
)

// restStorage opens the storage of every row of the table and adds what is
// particular to some.
func (s *Server) restStorage() (map[schema.GroupVersion]map[string]rest.Storage, admission.Interface, error) {
	resources := map[string]*resource{}
	served := map[schema.GroupVersion]map[string]rest.Storage{}
	serve := func(gv schema.GroupVersion, path string, storage rest.Storage) {
		if served[gv] == nil {
			served[gv] = map[string]rest.Storage{}
		}
		served[gv][path] = storage
	}
	for _, row := range kinds {
		k := *row
		if k.ttl > 0 {
			k.ttl = uint64(s.config.EventTTL.Seconds())
		}
		r, err := newResource(&k, s.backend)
		if err != nil {
			return nil, nil, fmt.Errorf("apiserver: %s: %w", k.plural, err)
		}
		resources[k.plural] = r
		serve(k.groupVersion(), k.plural, r)
		if k.status != nil {
			serve(k.groupVersion(), k.plural+"/status", &resettingSubresource{subresource{r.with(*k.status)}})
		}
	}
	admit := newAdmission(resources["namespaces"], resources["serviceaccounts"])
	namespaces := resources["namespaces"]
	serve(coreV1, "namespaces", newNamespaceREST(namespaces, admit.namespaceDeleting))
	// From the store as newNamespaceREST has set it up: a status write must not
	// remove a namespace whose contents are still there.
	serve(coreV1, "namespaces/status", &resettingSubresource{subresource{namespaces.with(namespaceStatusRules)}})
	serve(coreV1, "namespaces/finalize", &finalizeREST{resettingSubresource{subresource{namespaces.with(namespaceFinalizeRules)}}})
	serve(appsV1, "deployments/scale", &scaleREST{resource: resources["deployments"]})
	serve(appsV1, "replicasets/scale", &scaleREST{resource: resources["replicasets"]})
	serve(schema.GroupVersion{Group: "events.k8s.io", Version: "v1"}, "events", resources["events"])
	if err := s.servePods(serve, resources); err != nil {
		return nil, nil, err
	}
	for gv, rows := range reviews(s.config.Authorizer) {
		for plural, r := range rows {
			serve(gv, plural, r)
		}
	}
	return served, admit, nil
}

var (
	coreV1 = schema.GroupVersion{Version: "v1"}
	appsV1 = schema.GroupVersion{Group: "apps", Version: "v1"}
)

// servePods adds what Pods, nodes and Services are connected to.
func (s *Server) servePods(serve func(schema.GroupVersion, string, rest.Storage), resources map[string]*resource) error {
	pods, services := resources["pods"], resources["services"]
	binding := &bindingREST{pods: pods}
	serve(coreV1, "pods/binding", binding)
	serve(coreV1, "bindings", &legacyBindingREST{inner: binding})
	serve(coreV1, "pods/eviction", &evictionREST{pods: pods, status: pods.with(podStatusRules)})

	k := &kubelets{connector: s.config.Kubelets, pods: pods, nodes: resources["nodes"]}
	serve(coreV1, "pods/log", &logREST{kubelets: k})
	serve(coreV1, "pods/exec", streamREST(k, s.config.Authorizer, "exec", func() runtime.Object { return &core.PodExecOptions{} }))
	serve(coreV1, "pods/attach", streamREST(k, s.config.Authorizer, "attach", func() runtime.Object { return &core.PodAttachOptions{} }))
	serve(coreV1, "pods/portforward", streamREST(k, s.config.Authorizer, "portForward", func() runtime.Object { return &core.PodPortForwardOptions{} }))

	targets := &proxyTargets{kubelets: k, services: services, slices: resources["endpointslices"], transport: proxyTransport()}
	serve(coreV1, "pods/proxy", proxyREST(func() runtime.Object { return &core.PodProxyOptions{} }, targets.pod))
	serve(coreV1, "services/proxy", proxyREST(func() runtime.Object { return &core.ServiceProxyOptions{} }, targets.service))
	serve(coreV1, "nodes/proxy", proxyREST(func() runtime.Object { return &core.NodeProxyOptions{} }, targets.node))

	book, err := newAddressBook(s.config.ServiceClusterIPRange, s.config.ServiceNodePortRange)
	if err != nil {
		return err
	}
	hooks := &serviceHooks{services: services, book: book}
	hooks.attach()
	serve(coreV1, "services/status", &resettingSubresource{subresource{statusOnly(services.with(serviceStatusRules))}})
	return nil
}

// statusOnly is a store whose updates go past the hooks of the whole object.
func statusOnly(store *genericregistry.Store) *genericregistry.Store {
	store.BeginUpdate = nil
	return store
}

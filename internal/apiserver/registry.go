package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"
)

// served is the REST storage by group version and path.
type served map[schema.GroupVersion]map[string]rest.Storage

func (s served) add(gv schema.GroupVersion, path string, storage rest.Storage) {
	if s[gv] == nil {
		s[gv] = map[string]rest.Storage{}
	}
	s[gv][path] = storage
}

// restStorage opens the storage of every row of the table and adds what is
// particular to some.
func (s *Server) restStorage() (served, admission.Interface, error) {
	ranges, err := parseServiceRanges(s.config.ServiceClusterIPRange)
	if err != nil {
		return nil, nil, err
	}
	if ports := s.config.ServiceNodePortRange; ports[0] < 1 || ports[1] > 65535 || ports[0] > ports[1] {
		return nil, nil, fmt.Errorf("apiserver: ServiceNodePortRange %d-%d must lie within 1-65535", ports[0], ports[1])
	}
	resources, err := s.openKinds()
	if err != nil {
		return nil, nil, err
	}
	s.resources = resources
	s.book = newAddressBook(ranges, s.config.ServiceNodePortRange, resources)
	// Subresources are copies of the storage: what is particular to all writes
	// of a kind is set up before they are made.
	keepUntilEmptied(resources["namespaces"])
	(&serviceHooks{services: resources["services"], book: s.book}).attach()

	all := served{}
	for _, r := range resources {
		gv := r.kind.groupVersion()
		all.add(gv, r.kind.plural, r)
		if r.kind.status != nil {
			all.add(gv, r.kind.plural+"/status", &resettingSubresource{subresource{r.with(*r.kind.status)}})
		}
	}
	namespaces := resources["namespaces"]
	admit := newAdmission(namespaces, resources["serviceaccounts"])
	all.add(coreV1, "namespaces", &namespaceREST{resource: namespaces, deleting: admit.namespaceDeleting})
	all.add(coreV1, "namespaces/finalize", &finalizeREST{resettingSubresource{subresource{namespaces.with(namespaceFinalizeRules)}}})
	all.add(appsV1, "deployments/scale", &scaleREST{resource: resources["deployments"]})
	all.add(appsV1, "replicasets/scale", &scaleREST{resource: resources["replicasets"]})
	all.add(schema.GroupVersion{Group: "events.k8s.io", Version: "v1"}, "events", resources["events"])
	s.servePods(all, resources)
	s.pods.admit = admit
	for gv, rows := range reviews(s.config.Authorizer) {
		for plural, r := range rows {
			all.add(gv, plural, r)
		}
	}
	return all, admit, nil
}

// openKinds opens the storage of every row, by plural.
func (s *Server) openKinds() (map[string]*resource, error) {
	resources := map[string]*resource{}
	for _, row := range kinds {
		k := *row
		if k.ttl > 0 {
			k.ttl = uint64(s.config.EventTTL.Seconds())
		}
		r, err := newResource(&k, s.backend)
		if err != nil {
			for _, opened := range resources {
				opened.Destroy()
			}
			return nil, fmt.Errorf("apiserver: %s: %w", k.plural, err)
		}
		resources[k.plural] = r
	}
	return resources, nil
}

var (
	coreV1 = schema.GroupVersion{Version: "v1"}
	appsV1 = schema.GroupVersion{Group: "apps", Version: "v1"}
)

// servePods adds what Pods, nodes and Services are connected to.
func (s *Server) servePods(all served, resources map[string]*resource) {
	pods := resources["pods"]
	s.pods = &podStorage{pods: &podREST{pods}, status: all[coreV1]["pods/status"].(*resettingSubresource), binding: &bindingREST{pods: pods}}
	binding := s.pods.binding
	all.add(coreV1, "pods", s.pods.pods)
	all.add(coreV1, "pods/binding", binding)
	all.add(coreV1, "bindings", &legacyBindingREST{inner: binding})
	all.add(coreV1, "pods/eviction", &evictionREST{pods: pods, status: pods.with(podStatusRules)})

	k := &kubelets{connector: s.config.Kubelets, pods: pods, nodes: resources["nodes"]}
	authz := s.config.Authorizer
	all.add(coreV1, "pods/log", &logREST{kubelets: k})
	all.add(coreV1, "pods/exec", streamREST(k, authz, "exec", func() runtime.Object { return &core.PodExecOptions{} }))
	all.add(coreV1, "pods/attach", streamREST(k, authz, "attach", func() runtime.Object { return &core.PodAttachOptions{} }))
	all.add(coreV1, "pods/portforward", streamREST(k, authz, "portForward", func() runtime.Object { return &core.PodPortForwardOptions{} }))

	targets := &proxyTargets{kubelets: k, services: resources["services"], slices: resources["endpointslices"], transport: proxyTransport()}
	all.add(coreV1, "pods/proxy", proxyREST(func() runtime.Object { return &core.PodProxyOptions{} }, targets.pod))
	all.add(coreV1, "services/proxy", proxyREST(func() runtime.Object { return &core.ServiceProxyOptions{} }, targets.service))
	all.add(coreV1, "nodes/proxy", proxyREST(func() runtime.Object { return &core.NodeProxyOptions{} }, targets.node))
}

package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
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
	core, apps := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "apps", Version: "v1"}

	namespaces := resources["namespaces"]
	serve(core, "namespaces", newNamespaceREST(namespaces, admit.namespaceDeleting))
	serve(core, "namespaces/finalize", &finalizeREST{resettingSubresource{subresource{namespaces.with(namespaceFinalizeRules)}}})

	pods := resources["pods"]
	binding := &bindingREST{pods: pods}
	serve(core, "pods/binding", binding)
	serve(core, "bindings", &legacyBindingREST{inner: binding})
	serve(core, "pods/ephemeralcontainers", &filteringSubresource{subresource{pods.with(podEphemeralContainersRules)}})

	serve(apps, "deployments/scale", &scaleREST{resource: resources["deployments"]})
	serve(apps, "replicasets/scale", &scaleREST{resource: resources["replicasets"]})

	serve(schema.GroupVersion{Group: "events.k8s.io", Version: "v1"}, "events", resources["events"])
	return served, admit, nil
}

package apiserver

import (
	"strconv"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
)

// kind is a row of the table: what is particular to one kind of object. The rest
// is generic code and upstream's defaults, validation and columns.
type kind struct {
	group, version   string // served and stored version
	name             string // "Pod"
	plural, singular string
	short            []string
	categories       []string
	namespaced       bool
	keyPrefix        string // of its keys in the store; default: plural
	uncached         bool   // no watch cache
	ttl              uint64 // seconds until an object is dropped; 0: never
	returnsDeleted   bool   // DELETE answers with the object, not a Status

	rules  rules
	status *rules // of the subresource status; nil: there is none

	// fields are the selectable fields beyond metadata.name and
	// metadata.namespace, and indexed the one that the watch cache indexes.
	fields  func(runtime.Object) fields.Set
	indexed string
}

func (k *kind) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: k.group, Version: k.version}
}

func (k *kind) resource() schema.GroupResource {
	return schema.GroupResource{Group: k.group, Resource: k.plural}
}

// newObject and newList return empty objects in the internal version.
func (k *kind) newObject() runtime.Object { return newInternal(k.group, k.name) }
func (k *kind) newList() runtime.Object   { return newInternal(k.group, k.name+"List") }

func newInternal(group, name string) runtime.Object {
	obj, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: group, Version: runtime.APIVersionInternal, Kind: name})
	if err != nil {
		panic(err) // a row of the table names a kind that does not exist
	}
	return obj
}

// kinds is the table. Whatever is served has a row here, but for reviews, which
// are answered and not stored.
var kinds = []*kind{
	{
		version: "v1", name: "Namespace", plural: "namespaces", singular: "namespace", short: []string{"ns"},
		returnsDeleted: true,
		rules:          namespaceRules, status: &namespaceStatusRules,
		fields: selects(func(n *core.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase), "name": n.Name}
		}),
	},
	{
		version: "v1", name: "Node", plural: "nodes", singular: "node", short: []string{"no"},
		keyPrefix: "minions",
		rules:     nodeRules, status: &nodeStatusRules,
		fields: selects(func(n *core.Node) fields.Set {
			return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
		}),
	},
	{
		version: "v1", name: "Pod", plural: "pods", singular: "pod", short: []string{"po"}, categories: []string{"all"},
		namespaced: true, returnsDeleted: true,
		rules: podRules, status: &podStatusRules,
		fields: selects(podFields), indexed: "spec.nodeName",
	},
	{
		version: "v1", name: "Service", plural: "services", singular: "service", short: []string{"svc"}, categories: []string{"all"},
		namespaced: true, returnsDeleted: true, keyPrefix: "services/specs",
		rules: serviceRules, status: &serviceStatusRules,
		fields: selects(func(s *core.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		}),
	},
	{
		version: "v1", name: "Endpoints", plural: "endpoints", singular: "endpoints", short: []string{"ep"},
		namespaced: true, keyPrefix: "services/endpoints",
		rules: endpointsRules,
	},
	{
		group: "discovery.k8s.io", version: "v1", name: "EndpointSlice", plural: "endpointslices", singular: "endpointslice",
		namespaced: true,
		rules:      endpointSliceRules,
	},
	{
		group: "networking.k8s.io", version: "v1", name: "ServiceCIDR", plural: "servicecidrs", singular: "servicecidr",
		rules: serviceCIDRRules, status: &serviceCIDRStatusRules,
	},
	{
		group: "networking.k8s.io", version: "v1", name: "IPAddress", plural: "ipaddresses", singular: "ipaddress", short: []string{"ip"},
		rules: ipAddressRules,
	},
	{
		version: "v1", name: "ConfigMap", plural: "configmaps", singular: "configmap", short: []string{"cm"},
		namespaced: true,
		rules:      configMapRules,
	},
	{
		version: "v1", name: "Secret", plural: "secrets", singular: "secret",
		namespaced: true,
		rules:      secretRules,
		fields:     selects(func(s *core.Secret) fields.Set { return fields.Set{"type": string(s.Type)} }),
	},
	{
		version: "v1", name: "ServiceAccount", plural: "serviceaccounts", singular: "serviceaccount", short: []string{"sa"},
		namespaced: true, returnsDeleted: true,
		rules: serviceAccountRules,
	},
	{
		version: "v1", name: "Event", plural: "events", singular: "event", short: []string{"ev"},
		namespaced: true, uncached: true, ttl: 3600,
		rules:  eventRules,
		fields: selects(eventFields),
	},
	{
		group: "coordination.k8s.io", version: "v1", name: "Lease", plural: "leases", singular: "lease",
		namespaced: true,
		rules:      leaseRules,
	},
	{
		group: "apps", version: "v1", name: "Deployment", plural: "deployments", singular: "deployment",
		short: []string{"deploy"}, categories: []string{"all"}, namespaced: true,
		rules: deploymentRules, status: &deploymentStatusRules,
	},
	{
		group: "apps", version: "v1", name: "ReplicaSet", plural: "replicasets", singular: "replicaset",
		short: []string{"rs"}, categories: []string{"all"}, namespaced: true,
		rules: replicaSetRules, status: &replicaSetStatusRules,
	},
}

func selects[T runtime.Object](f func(T) fields.Set) func(runtime.Object) fields.Set {
	return func(obj runtime.Object) fields.Set { return f(obj.(T)) }
}

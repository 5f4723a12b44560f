package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apps "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
)

// request is one call of a loop.
type request struct {
	verb string // get, list, create, update, updateStatus, patch, patchStatus, delete, bind
	res  resource
	key  string // what it is about; for create the name or its beginning
	obj  object // create, update: what is sent
	body []byte // patch
}

func (r request) isWrite() bool { return r.verb != "get" && r.verb != "list" }

func (r request) String() string { return r.verb + " " + string(r.res) + " " + r.key }

// client is the API as one loop's process sees it. It has the methods that the
// loops use; any other is a nil method, and a sync that panics is a breach.
type client struct {
	kubernetes.Interface
	life *life
}

func (c client) AppsV1() appsclient.AppsV1Interface { return appsV1{life: c.life} }
func (c client) CoreV1() coreclient.CoreV1Interface { return coreV1{life: c.life} }

func (c client) CoordinationV1() coordinationclient.CoordinationV1Interface {
	return coordinationV1{life: c.life}
}

type coordinationV1 struct {
	coordinationclient.CoordinationV1Interface
	life *life
}

func (c coordinationV1) Leases(ns string) coordinationclient.LeaseInterface {
	return leaseClient{typed: typed[*coordination.Lease]{c.life, leases, ns}}
}

type appsV1 struct {
	appsclient.AppsV1Interface
	life *life
}

func (a appsV1) Deployments(ns string) appsclient.DeploymentInterface {
	return deploymentClient{typed: typed[*apps.Deployment]{a.life, deployments, ns}}
}

func (a appsV1) ReplicaSets(ns string) appsclient.ReplicaSetInterface {
	return replicaSetClient{typed: typed[*apps.ReplicaSet]{a.life, replicaSets, ns}}
}

type coreV1 struct {
	coreclient.CoreV1Interface
	life *life
}

func (c coreV1) Pods(ns string) coreclient.PodInterface {
	return podClient{typed: typed[*v1.Pod]{c.life, pods, ns}}
}

func (c coreV1) Nodes() coreclient.NodeInterface {
	return nodeClient{typed: typed[*v1.Node]{c.life, nodes, ""}}
}

// The generated interfaces are wider than what the loops call. The rest of them is
// embedded one level deeper than typed, whose methods therefore win.
type (
	restOfDeployments struct{ appsclient.DeploymentInterface }
	restOfReplicaSets struct{ appsclient.ReplicaSetInterface }
	restOfPods        struct{ coreclient.PodInterface }
	restOfNodes       struct{ coreclient.NodeInterface }
	restOfLeases      struct {
		coordinationclient.LeaseInterface
	}

	deploymentClient struct {
		typed[*apps.Deployment]
		restOfDeployments
	}
	replicaSetClient struct {
		typed[*apps.ReplicaSet]
		restOfReplicaSets
	}
	podClient struct {
		typed[*v1.Pod]
		restOfPods
	}
	nodeClient struct {
		typed[*v1.Node]
		restOfNodes
	}
	leaseClient struct {
		typed[*coordination.Lease]
		restOfLeases
	}
)

// typed is the client of one kind in one namespace ("" for cluster-scoped).
type typed[T object] struct {
	life      *life
	res       resource
	namespace string
}

func (c typed[T]) key(name string) string {
	if c.namespace == "" {
		return name
	}
	return c.namespace + "/" + name
}

// answer gives the caller a copy: what the API stored is nobody's to change.
func answer[T object](o object, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return clone(o.(T)), nil
}

func (c typed[T]) Get(ctx context.Context, name string, _ metav1.GetOptions) (T, error) {
	r := request{verb: "get", res: c.res, key: c.key(name)}
	return answer[T](c.life.call(ctx, r, func(a *api) (object, error) { return a.get(c.res, r.key) }))
}

func (c typed[T]) Create(ctx context.Context, o T, _ metav1.CreateOptions) (T, error) {
	r := request{verb: "create", res: c.res, key: c.key(o.GetName() + o.GetGenerateName()), obj: o}
	return answer[T](c.life.call(ctx, r, func(a *api) (object, error) { return a.create(c.res, o) }))
}

func (c typed[T]) Update(ctx context.Context, o T, _ metav1.UpdateOptions) (T, error) {
	r := request{verb: "update", res: c.res, key: keyOf(o), obj: o}
	return answer[T](c.life.call(ctx, r, func(a *api) (object, error) { return a.update(c.res, o, false) }))
}

func (c typed[T]) UpdateStatus(ctx context.Context, o T, _ metav1.UpdateOptions) (T, error) {
	r := request{verb: "updateStatus", res: c.res, key: keyOf(o), obj: o}
	return answer[T](c.life.call(ctx, r, func(a *api) (object, error) { return a.update(c.res, o, true) }))
}

func (c typed[T]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	r := request{verb: "delete", res: c.res, key: c.key(name)}
	_, err := c.life.call(ctx, r, func(a *api) (object, error) { return nil, a.delete(c.res, r.key, opts) })
	return err
}

func (c typed[T]) Bind(ctx context.Context, b *v1.Binding, _ metav1.CreateOptions) error {
	r := request{verb: "bind", res: c.res, key: keyOf(b), body: []byte(b.Target.Name)}
	_, err := c.life.call(ctx, r, func(a *api) (object, error) { return nil, a.bind(b) })
	return err
}

func (c typed[T]) Patch(ctx context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, sub ...string) (T, error) {
	r := request{verb: "patch", res: c.res, key: c.key(name), body: body}
	if len(sub) > 0 {
		r.verb = "patchStatus"
	}
	return answer[T](c.life.call(ctx, r, func(a *api) (object, error) {
		old, err := a.get(c.res, r.key)
		if err != nil {
			return nil, err
		}
		next, err := strategic(old.(T), body)
		switch {
		case err != nil:
			return nil, err
		case next.GetUID() != old.GetUID() && next.GetResourceVersion() == old.GetResourceVersion():
			return nil, invalid(c.res, name)
		}
		return a.update(c.res, next, r.verb == "patchStatus")
	}))
}

// strategic applies a strategic merge patch.
func strategic[T object](old T, body []byte) (T, error) {
	var none T
	before, err := json.Marshal(old)
	if err != nil {
		return none, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, old)
	if err != nil {
		return none, err
	}
	next := clone(old)
	emptied(next)
	return next, json.Unmarshal(after, next)
}

// emptied clears what json.Unmarshal would merge into.
func emptied(o object) {
	switch x := o.(type) {
	case *apps.Deployment:
		*x = apps.Deployment{}
	case *apps.ReplicaSet:
		*x = apps.ReplicaSet{}
	case *v1.Pod:
		*x = v1.Pod{}
	case *v1.Node:
		*x = v1.Node{}
	}
}

// metadataClient is the API as garbage collection uses it.
type metadataClient struct{ life *life }

func (m metadataClient) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	return metadataOfKind{life: m.life, res: resource(gvr.Resource)}
}

type metadataOfKind struct {
	metadata.Getter // what the loop does not call
	life            *life
	res             resource
	namespace       string
}

func (m metadataOfKind) Namespace(ns string) metadata.ResourceInterface {
	m.namespace = ns
	return m
}

func (m metadataOfKind) key(name string) string {
	return typed[object]{namespace: m.namespace}.key(name)
}

func (m metadataOfKind) Get(ctx context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	r := request{verb: "get", res: m.res, key: m.key(name)}
	o, err := m.life.call(ctx, r, func(a *api) (object, error) { return a.get(m.res, r.key) })
	if err != nil {
		return nil, err
	}
	return metadataOf(o), nil
}

func (m metadataOfKind) List(ctx context.Context, _ metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	_, err := m.life.call(ctx, request{verb: "list", res: m.res, key: m.namespace}, func(a *api) (object, error) {
		for _, o := range a.all(m.res) {
			if m.namespace == "" || o.GetNamespace() == m.namespace {
				list.Items = append(list.Items, *metadataOf(o))
			}
		}
		return nil, nil
	})
	return list, err
}

func (m metadataOfKind) Delete(ctx context.Context, name string, opts metav1.DeleteOptions, _ ...string) error {
	r := request{verb: "delete", res: m.res, key: m.key(name)}
	_, err := m.life.call(ctx, r, func(a *api) (object, error) { return nil, a.delete(m.res, r.key, opts) })
	return err
}

// DeleteCollection takes effect at once, or not at all.
func (m metadataOfKind) DeleteCollection(ctx context.Context, opts metav1.DeleteOptions, _ metav1.ListOptions) error {
	r := request{verb: "deleteCollection", res: m.res, key: m.namespace}
	_, err := m.life.call(ctx, r, func(a *api) (object, error) {
		for _, o := range a.all(m.res) {
			if m.namespace == "" || o.GetNamespace() == m.namespace {
				must(a.delete(m.res, keyOf(o), opts))
			}
		}
		return nil, nil
	})
	return err
}

func (m metadataOfKind) Patch(ctx context.Context, name string, _ types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	r := request{verb: "patch", res: m.res, key: m.key(name), body: body}
	o, err := m.life.call(ctx, r, func(a *api) (object, error) {
		old, err := a.get(m.res, r.key)
		if err != nil {
			return nil, err
		}
		next := clone(old)
		if err := patchMetadata(next, body); err != nil {
			return nil, invalid(m.res, name)
		}
		return a.update(m.res, next, false)
	})
	if err != nil {
		return nil, err
	}
	return metadataOf(o), nil
}

// patchMetadata applies a JSON patch that touches owner references or finalizers.
func patchMetadata(o object, body []byte) error {
	patch, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return err
	}
	before, err := json.Marshal(metadataOf(o))
	if err != nil {
		return err
	}
	after, err := patch.Apply(before)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	var next metav1.PartialObjectMetadata
	if err := json.Unmarshal(after, &next); err != nil {
		return err
	}
	if next.UID != o.GetUID() {
		return errors.New("UID is immutable")
	}
	o.SetOwnerReferences(next.OwnerReferences)
	o.SetFinalizers(next.Finalizers)
	return nil
}

package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// resource is the lower-case plural of a kind the world serves.
type resource string

const (
	deployments resource = "deployments"
	replicaSets resource = "replicasets"
	pods        resource = "pods"
	nodes       resource = "nodes"
	// leases are only watched in seeds where nodes go silent.
	leases resource = "leases"
	// Only in seeds where namespaces come and go.
	namespaces      resource = "namespaces"
	serviceAccounts resource = "serviceaccounts"
	configMaps      resource = "configmaps"
	// Only in seeds with Services.
	services       resource = "services"
	endpointSlices resource = "endpointslices"
	endpointsRes   resource = "endpoints"
	// Only in seeds where Services have addresses.
	serviceCIDRs resource = "servicecidrs"
	ipAddresses  resource = "ipaddresses"
)

// resources are watched in every seed, namespaceKinds only where namespaces come
// and go, serviceKinds only where there are Services, addressKinds only where those
// have addresses. These and the Leases are all there is.
var (
	resources      = []resource{deployments, replicaSets, pods, nodes}
	namespaceKinds = []resource{namespaces, serviceAccounts, configMaps}
	serviceKinds   = []resource{services, endpointSlices, endpointsRes}
	addressKinds   = []resource{serviceCIDRs, ipAddresses}
	everything     = slices.Concat(resources, []resource{leases}, namespaceKinds, serviceKinds, addressKinds)
)

// object is a stored object. Once stored it is never changed: whoever wants
// another stores a copy. Caches share it, as informers share decoded objects.
type object interface {
	metav1.Object
	runtime.Object
}

// event is one change of one kind, in the order of the watch.
type event struct {
	gone bool
	obj  object
}

// api is the world's API server: the truth. It knows neither faults nor callers;
// client.go puts those in front.
type api struct {
	now     func() time.Time
	objects map[resource]map[string]object
	log     map[resource][]event
	revs    int
	moves   int // revs but for those of Leases, which never rest
	names   int
	changed func(res resource, before, after object) // after every change; nil: absent
	stored  func(object)                             // if not nil, is shown every version
	admit   func(resource, object) error             // of what is created; nil: all is let in
}

func newAPI(now func() time.Time) *api {
	a := &api{now: now, objects: map[resource]map[string]object{}, log: map[resource][]event{}}
	for _, res := range everything {
		a.objects[res] = map[string]object{}
	}
	return a
}

func keyOf(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// all are the objects of a kind by key, in order.
func (a *api) all(res resource) []object {
	list := make([]object, 0, len(a.objects[res]))
	for _, o := range a.objects[res] {
		list = append(list, o)
	}
	slices.SortFunc(list, func(x, y object) int { return compare(keyOf(x), keyOf(y)) })
	return list
}

func listOf[T object](a *api, res resource) []T {
	var list []T
	for _, o := range a.all(res) {
		list = append(list, o.(T))
	}
	return list
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func group(res resource) schema.GroupResource {
	switch res {
	case deployments, replicaSets:
		return schema.GroupResource{Group: "apps", Resource: string(res)}
	case endpointSlices:
		return schema.GroupResource{Group: discovery.GroupName, Resource: string(res)}
	case serviceCIDRs, ipAddresses:
		return schema.GroupResource{Group: networking.GroupName, Resource: string(res)}
	}
	return schema.GroupResource{Resource: string(res)}
}

func conflict(res resource, name, why string) error {
	return apierrors.NewConflict(group(res), name, errors.New(why))
}

func invalid(res resource, name string) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: group(res).Group, Kind: string(res)}, name, nil)
}

func (a *api) get(res resource, key string) (object, error) {
	if o := a.objects[res][key]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(group(res), key)
}

func clone[T object](o T) T { return o.DeepCopyObject().(T) }

// put stores o, which the caller gives away, as the next version of its kind.
func (a *api) put(res resource, o object) object {
	before := a.objects[res][keyOf(o)]
	a.revs++
	if res != leases {
		a.moves++
	}
	o.SetResourceVersion(strconv.Itoa(a.revs))
	if o.GetDeletionTimestamp() != nil && !isHeld(o) && hasEndedGrace(o) {
		return a.drop(res, o)
	}
	if a.stored != nil {
		a.stored(o)
	}
	a.objects[res][keyOf(o)] = o
	a.log[res] = append(a.log[res], event{obj: o})
	a.changed(res, before, o)
	return o
}

// isHeld says whether a finalizer keeps the object; a namespace has them in its
// spec too.
func isHeld(o object) bool {
	n, ok := o.(*v1.Namespace)
	return len(o.GetFinalizers()) > 0 || ok && len(n.Spec.Finalizers) > 0
}

func hasEndedGrace(o object) bool {
	grace := o.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}

func (a *api) drop(res resource, o object) object {
	before := a.objects[res][keyOf(o)]
	delete(a.objects[res], keyOf(o))
	a.log[res] = append(a.log[res], event{gone: true, obj: o})
	a.changed(res, before, nil)
	return o
}

func (a *api) create(res resource, o object) (object, error) {
	if a.admit != nil {
		if err := a.admit(res, o); err != nil {
			return nil, err
		}
	}
	return a.admitted(res, o)
}

// admitted stores a new object that admission has let in.
func (a *api) admitted(res resource, o object) (object, error) {
	o = clone(o)
	if o.GetName() == "" {
		a.names++
		o.SetName(fmt.Sprintf("%s%05d", o.GetGenerateName(), a.names))
	}
	if a.objects[res][keyOf(o)] != nil {
		return nil, apierrors.NewAlreadyExists(group(res), o.GetName())
	}
	if controllers(o) > 1 {
		return nil, invalid(res, o.GetName())
	}
	a.names++
	o.SetUID(a.lastUID())
	o.SetCreationTimestamp(metav1.NewTime(a.now().Truncate(time.Second)))
	o.SetDeletionTimestamp(nil)
	o.SetGeneration(1)
	switch x := o.(type) {
	case *apps.Deployment:
		x.Status = apps.DeploymentStatus{}
	case *apps.ReplicaSet:
		x.Status = apps.ReplicaSetStatus{}
	case *v1.Pod:
		x.Status = v1.PodStatus{Phase: v1.PodPending}
		x.Spec.Tolerations = defaultTolerations()
	case *v1.Namespace:
		x.Status = v1.NamespaceStatus{Phase: v1.NamespaceActive}
		x.Spec.Finalizers = append(slices.Clone(x.Spec.Finalizers), v1.FinalizerKubernetes)
	}
	return a.put(res, o), nil
}

// uidOf is the UID given nth: later ones are greater.
func uidOf(n int) types.UID { return types.UID(fmt.Sprintf("uid-%05d", n)) }

func (a *api) lastUID() types.UID { return uidOf(a.names) }

// controllers counts the owner references with controller=true.
func controllers(o metav1.Object) int {
	n := 0
	for _, ref := range o.GetOwnerReferences() {
		if ptr.Deref(ref.Controller, false) {
			n++
		}
	}
	return n
}

// update writes next over what is there: all but the status, or the status and
// the metadata that its strategy lets through.
func (a *api) update(res resource, next object, status bool) (object, error) {
	old, err := a.target(res, next)
	switch {
	case err != nil:
		return nil, err
	case controllers(next) > 1 || isFrozen(old, next):
		return nil, invalid(res, next.GetName())
	}
	next = clone(next)
	next.SetUID(old.GetUID())
	next.SetResourceVersion(old.GetResourceVersion())
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	next.SetGeneration(old.GetGeneration())
	if keepOther(old, next, status) {
		next.SetGeneration(old.GetGeneration() + 1)
	}
	if equality.Semantic.DeepEqual(old, next) {
		return old, nil
	}
	return a.put(res, next), nil
}

// target is the object that next is to be written over, if it is still the one
// that next was made from.
func (a *api) target(res resource, next object) (object, error) {
	old, err := a.get(res, keyOf(next))
	switch {
	case err != nil:
		return nil, err
	case next.GetUID() != "" && next.GetUID() != old.GetUID():
		return nil, conflict(res, next.GetName(), "UID differs")
	case next.GetResourceVersion() != "" && next.GetResourceVersion() != old.GetResourceVersion():
		return nil, conflict(res, next.GetName(), "the object has been modified")
	}
	return old, nil
}

// keepOther takes into next what this kind of write does not change, and says
// whether it changes the spec.
func keepOther(old, next object, status bool) bool {
	switch n := next.(type) {
	case *apps.Deployment:
		o := old.(*apps.Deployment)
		if status {
			n.Spec, n.Labels = o.Spec, o.Labels
			return false
		}
		n.Status = o.Status
		return !equality.Semantic.DeepEqual(o.Spec, n.Spec)
	case *apps.ReplicaSet:
		o := old.(*apps.ReplicaSet)
		if status {
			n.Spec = o.Spec
			return false
		}
		n.Status = o.Status
		return !equality.Semantic.DeepEqual(o.Spec, n.Spec)
	case *v1.Pod:
		o := old.(*v1.Pod)
		if status {
			n.Spec, n.OwnerReferences = o.Spec, o.OwnerReferences
			return false
		}
		n.Status = o.Status
	case *v1.Namespace:
		o := old.(*v1.Namespace)
		n.Spec = o.Spec
		if !status {
			n.Status = o.Status
		}
	case *v1.Service:
		if o := old.(*v1.Service); status {
			n.Spec = o.Spec
		} else {
			n.Status = o.Status
			if n.Spec.Type != v1.ServiceTypeLoadBalancer {
				n.Status.LoadBalancer = v1.LoadBalancerStatus{}
			}
		}
	case *networking.ServiceCIDR:
		if o := old.(*networking.ServiceCIDR); status {
			n.Spec = o.Spec
		} else {
			n.Status = o.Status
		}
	case *discovery.EndpointSlice:
		return sliceChanged(old.(*discovery.EndpointSlice), n)
	}
	return false
}

// change is an update by somebody who holds the truth: users and the agent.
func change[T object](a *api, res resource, o T, status bool, edit func(T)) {
	next := clone(o)
	edit(next)
	next.SetResourceVersion("")
	if _, err := a.update(res, next, status); err != nil {
		panic(fmt.Sprintf("%s %s: %v", res, keyOf(o), err)) // nobody stands between
	}
}

// delete is a DELETE with its options, as the generic registry treats it.
func (a *api) delete(res resource, key string, opts metav1.DeleteOptions) error {
	old, err := a.get(res, key)
	if err != nil {
		return err
	}
	if p := opts.Preconditions; p != nil {
		if p.UID != nil && *p.UID != old.GetUID() {
			return conflict(res, key, "UID differs")
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
			return conflict(res, key, "resourceVersion differs")
		}
	}
	next := clone(old)
	grace := graceOf(old, opts)
	if opts.PropagationPolicy != nil {
		next.SetFinalizers(finalizersFor(old.GetFinalizers(), *opts.PropagationPolicy))
	}
	if old.GetDeletionTimestamp() == nil {
		next.SetDeletionTimestamp(&metav1.Time{Time: a.now().Truncate(time.Second).Add(time.Duration(grace) * time.Second)})
		next.SetGeneration(old.GetGeneration() + 1)
		if n, ok := next.(*v1.Namespace); ok {
			n.Status.Phase = v1.NamespaceTerminating
		}
	} else {
		grace = min(grace, *old.GetDeletionGracePeriodSeconds())
	}
	next.SetDeletionGracePeriodSeconds(ptr.To(grace))
	if !equality.Semantic.DeepEqual(old, next) || !isHeld(next) && grace == 0 {
		a.put(res, next)
	}
	return nil
}

// graceOf is the grace period in seconds: only a Pod on a node that has not ended
// has one.
func graceOf(o object, opts metav1.DeleteOptions) int64 {
	pod, ok := o.(*v1.Pod)
	if !ok || pod.Spec.NodeName == "" || isOver(pod) {
		return 0
	}
	return ptr.Deref(opts.GracePeriodSeconds, 30)
}

func finalizersFor(have []string, policy metav1.DeletionPropagation) []string {
	next := slices.DeleteFunc(slices.Clone(have), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	switch policy {
	case metav1.DeletePropagationOrphan:
		next = append(next, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationForeground:
		next = append(next, metav1.FinalizerDeleteDependents)
	case metav1.DeletePropagationBackground:
	}
	return next
}

// bind is the binding subresource of Pods.
func (a *api) bind(b *v1.Binding) error {
	old, err := a.get(pods, keyOf(b))
	if err != nil {
		return err
	}
	pod := clone(old.(*v1.Pod))
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return conflict(pods, b.Name, "UID differs")
	case pod.DeletionTimestamp != nil:
		return conflict(pods, b.Name, "is being deleted")
	case pod.Spec.NodeName != "":
		return conflict(pods, b.Name, "is already assigned")
	}
	pod.Spec.NodeName = b.Target.Name
	setPodCondition(pod, v1.PodScheduled, v1.ConditionTrue, a.now())
	a.put(pods, pod)
	return nil
}

func setPodCondition(pod *v1.Pod, kind v1.PodConditionType, value v1.ConditionStatus, now time.Time) {
	next := v1.PodCondition{Type: kind, Status: value, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second))}
	pod.Status.Conditions = append(slices.DeleteFunc(slices.Clone(pod.Status.Conditions),
		func(c v1.PodCondition) bool { return c.Type == kind }), next)
}

// isOver says whether the Pod's containers will not run again.
func isOver(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

func isActive(pod *v1.Pod) bool { return pod.DeletionTimestamp == nil && !isOver(pod) }

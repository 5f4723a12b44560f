package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientdiscovery "k8s.io/client-go/discovery"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	rootCA     = "the cluster's own"
	rootCAName = "kube-root-ca.crt"
	// hold is a finalizer of somebody else's.
	hold = "example.com/hold"
)

// systemNamespaces are those that every cluster has.
var systemNamespaces = []string{"default", "kube-node-lease", "kube-public", "kube-system"}

// namespaceActions disturb no Pods.
var namespaceActions = []action{
	{8, (*world).makeNamespace}, {4, (*world).makeConfigMap}, {6, (*world).makeLate},
	{4, (*world).letGo}, {3, (*world).deleteAccount}, {4, (*world).spoilRootCA},
}

// beginNamespaces: a world begins with the namespace default; the others of the
// system are the loop's to make.
func (w *world) beginNamespaces() {
	if !w.profile.namespaces {
		return
	}
	w.api.admit = w.admit
	w.addNamespace(metav1.NamespaceDefault)
}

func (w *world) addNamespace(name string, finalizers ...v1.FinalizerName) {
	_, err := w.api.create(namespaces, &v1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NamespaceSpec{Finalizers: finalizers}})
	must(err)
}

// admit is what admission says of a new object: its namespace must be there to
// stay, and a Pod needs its ServiceAccount.
func (w *world) admit(res resource, o object) error {
	ns := o.GetNamespace()
	if ns == "" || res == leases {
		return nil
	}
	n := w.api.objects[namespaces][ns]
	switch {
	case n == nil:
		return apierrors.NewNotFound(group(namespaces), ns)
	case n.GetDeletionTimestamp() != nil:
		err := apierrors.NewForbidden(group(res), o.GetName(), fmt.Errorf("unable to create new content in namespace %s because it is being terminated", ns))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1.NamespaceTerminatingCause, Field: "metadata.namespace"}}
		return err
	case res == pods && w.api.objects[serviceAccounts][ns+"/default"] == nil:
		return apierrors.NewForbidden(group(res), o.GetName(), fmt.Errorf("error looking up service account %s/default", ns))
	}
	return nil
}

// namespaceFor says where a Deployment of that name goes.
func (w *world) namespaceFor(name string) string {
	if w.profile.namespaces && name == "a" && w.rng.IntN(2) == 0 {
		return "team"
	}
	return metav1.NamespaceDefault
}

var aNamespace = kindOf[*v1.Namespace]{namespaces}

func (w *world) makeNamespace() bool {
	name := []string{"team", "team", "blank"}[w.rng.IntN(3)]
	if w.api.objects[namespaces][name] != nil {
		return false
	}
	var finalizers []v1.FinalizerName
	if w.rng.IntN(4) == 0 {
		finalizers = append(finalizers, hold)
	}
	w.addNamespace(name, finalizers...)
	w.note("user creates namespace %s, finalizers %v", name, finalizers)
	return true
}

func (w *world) deleteNamespace() bool {
	n, ok := pick(w, aNamespace, func(n *v1.Namespace) bool { return w.mayDelete(n) })
	if ok {
		w.endNamespace(n)
	}
	return ok
}

// mayDelete is false for three of the system's, and where agents write Leases also
// for the fourth.
func (w *world) mayDelete(n object) bool {
	isSystem := slices.Contains(systemNamespaces, n.GetName()) && (n.GetName() != v1.NamespaceNodeLease || w.profile.silence)
	return w.profile.losses && undeleted(n) && !isSystem
}

func (w *world) endNamespace(n object) {
	w.note("user deletes namespace %s", n.GetName())
	must(w.api.delete(namespaces, n.GetName(), metav1.DeleteOptions{}))
}

func (w *world) newConfigMap() *v1.ConfigMap {
	m := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: []string{"team", "blank", "default"}[w.rng.IntN(3)], Name: fmt.Sprint("settings-", w.rng.IntN(2)),
	}}
	if w.rng.IntN(3) == 0 {
		m.Finalizers = []string{hold}
	}
	return m
}

func (w *world) makeConfigMap() bool {
	m := w.newConfigMap()
	if _, err := w.api.create(configMaps, m); err != nil {
		return false
	}
	w.note("user creates ConfigMap %s, finalizers %v", keyOf(m), m.Finalizers)
	return true
}

// letGo takes the finalizer off a ConfigMap or a namespace.
func (w *world) letGo() bool {
	if m, ok := pick(w, kindOf[*v1.ConfigMap]{configMaps}, func(m *v1.ConfigMap) bool { return len(m.Finalizers) > 0 }); ok {
		w.note("ConfigMap %s is let go of", keyOf(m))
		change(w.api, configMaps, m, false, func(m *v1.ConfigMap) { m.Finalizers = nil })
		return true
	}
	n, ok := pick(w, aNamespace, isHeldByOthers)
	if ok {
		w.note("namespace %s is let go of", n.Name)
		next := clone(n)
		next.Spec.Finalizers = slices.DeleteFunc(next.Spec.Finalizers, func(f v1.FinalizerName) bool { return f == hold })
		_, err := w.api.finalize(next)
		must(err)
	}
	return ok
}

// isEnding says whether a namespace takes nothing more, such as what is missing there.
func (w *world) isEnding(ns string) bool {
	n := w.api.objects[namespaces][ns]
	return n != nil && !undeleted(n)
}

func isHeldByOthers(n *v1.Namespace) bool { return slices.Contains(n.Spec.Finalizers, hold) }

func (w *world) deleteAccount() bool {
	account, ok := pick(w, kindOf[*v1.ServiceAccount]{serviceAccounts}, undeleted[*v1.ServiceAccount])
	if ok {
		w.note("user deletes ServiceAccount %s", keyOf(account))
		must(w.api.delete(serviceAccounts, keyOf(account), metav1.DeleteOptions{}))
	}
	return ok
}

func isRootCA(m *v1.ConfigMap) bool { return m.Name == rootCAName }

// spoilRootCA deletes the certificates of a namespace, changes them, or changes
// them so that they cannot be put right.
func (w *world) spoilRootCA() bool {
	m, ok := pick(w, kindOf[*v1.ConfigMap]{configMaps}, isRootCA)
	if !ok {
		return false
	}
	how := w.rng.IntN(3)
	if how == 0 {
		w.note("user deletes the certificates of %s", m.Namespace)
		must(w.api.delete(configMaps, keyOf(m), metav1.DeleteOptions{}))
		return true
	}
	if m.Immutable != nil {
		return false
	}
	w.note("user spoils the certificates of %s, for good: %v", m.Namespace, how == 2)
	change(w.api, configMaps, m, false, func(m *v1.ConfigMap) {
		m.Data = map[string]string{"ca.crt": "another's"}
		if isFixed := true; how == 2 {
			m.Immutable = &isFixed
		}
	})
	return true
}

// latest is how long after its admission a create may take effect: less than what a
// namespace waits for before it goes.
const latest = time.Second

// late is a create that admission has let in and that is not stored yet.
type late struct {
	res resource
	obj object
	by  time.Duration // when it must have taken effect
}

func (w *world) makeLate() bool {
	l := late{res: configMaps, obj: w.newConfigMap(), by: w.clock.passed + latest}
	if w.rng.IntN(2) == 0 {
		l.res, l.obj = deployments, w.newDeployment()
	}
	if w.admit(l.res, l.obj) != nil {
		return false
	}
	w.note("user's create of %s %s is let in", l.res, keyOf(l.obj))
	w.late = append(w.late, l)
	if ns := w.api.objects[namespaces][l.obj.GetNamespace()]; w.mayDelete(ns) && w.rng.IntN(2) == 0 {
		w.endNamespace(ns)
	}
	return true
}

// isTooLate says whether something must take effect before so much time has passed.
func (w *world) isTooLate(d time.Duration) bool {
	return slices.ContainsFunc(w.late, func(l late) bool { return w.clock.passed+d >= l.by })
}

// land stores what is late, if it is time to.
func (w *world) land(now bool) {
	if !now {
		return
	}
	for _, l := range w.late {
		if ns := l.obj.GetNamespace(); w.profile.namespaces && ns != "" && w.api.objects[namespaces][ns] == nil {
			w.breach("%s %s was let in and lands in a namespace that is gone", l.res, keyOf(l.obj))
		}
		err := w.store(l)
		w.note("the create of %s %s lands: %v", l.res, keyOf(l.obj), err)
	}
	w.late = nil
}

func (w *world) store(l late) error {
	if s, ok := l.obj.(*v1.Service); ok {
		return w.storeAddressed(s)
	}
	_, err := w.api.admitted(l.res, l.obj)
	return err
}

// namespaceChanged checks what the loop that ends namespaces has done.
func (w *world) namespaceChanged(res resource, before, after object) {
	if w.caller == nil || w.caller.loop != "namespace" || before == nil {
		return
	}
	if n, ok := before.(*v1.Namespace); ok {
		w.judgeFinalizers(n, after)
		return
	}
	ns, _ := w.api.objects[namespaces][before.GetNamespace()].(*v1.Namespace)
	switch pod, isPod := before.(*v1.Pod); {
	case ns == nil || ns.DeletionTimestamp == nil:
		w.breach("%s %s is deleted although its namespace stays", res, keyOf(before))
	case isPod && after == nil && pod.Spec.NodeName != "" && !isOver(pod):
		w.breach("Pod %s is killed without its grace", keyOf(before))
	case !isPod && len(w.contents(ns.Name, pods)) > 0:
		w.breach("%s %s is deleted before the Pods of its namespace are gone", res, keyOf(before))
	}
}

// judgeFinalizers: only what is empty is let go of, and nobody else's word is given.
func (w *world) judgeFinalizers(before *v1.Namespace, after object) {
	var left []v1.FinalizerName
	if after != nil {
		left = after.(*v1.Namespace).Spec.Finalizers
	}
	for _, f := range before.Spec.Finalizers {
		if slices.Contains(left, f) {
			continue
		}
		if f != v1.FinalizerKubernetes {
			w.breach("namespace %s loses the finalizer %s", before.Name, f)
		}
		if have := w.contents(before.Name, everything...); len(have) > 0 {
			w.breach("namespace %s is let go of with %s in it", before.Name, have[0])
		}
	}
}

// contents are the objects of these kinds in a namespace.
func (w *world) contents(ns string, of ...resource) []string {
	var all []string
	for _, res := range of {
		for _, o := range w.api.all(res) {
			if o.GetNamespace() == ns {
				all = append(all, fmt.Sprintf("%s %s", res, keyOf(o)))
			}
		}
	}
	return all
}

// freeNamespaces lets go of all that others hold.
func (w *world) freeNamespaces() {
	w.land(true)
	for w.profile.namespaces && w.letGo() {
	}
}

// checkNamespaces expects that those that were deleted are gone, with all that was
// in them, and that each of the others has what every one has.
func (w *world) checkNamespaces() {
	if !w.profile.namespaces {
		return
	}
	for _, name := range systemNamespaces {
		if w.api.objects[namespaces][name] == nil {
			w.breach("the namespace %s is missing", name)
		}
	}
	for _, n := range listOf[*v1.Namespace](w.api, namespaces) {
		m, _ := w.api.objects[configMaps][n.Name+"/"+rootCAName].(*v1.ConfigMap)
		switch {
		case n.DeletionTimestamp != nil:
			w.breach("namespace %s does not end, finalizers %v, conditions %v", n.Name, n.Spec.Finalizers, n.Status.Conditions)
		case w.api.objects[serviceAccounts][n.Name+"/default"] == nil:
			w.breach("namespace %s has no ServiceAccount", n.Name)
		case m == nil || m.Data["ca.crt"] != rootCA:
			w.breach("namespace %s has not the cluster's certificates: %v", n.Name, m)
		}
	}
	for _, res := range everything {
		for _, o := range w.api.all(res) {
			if ns := o.GetNamespace(); ns != "" && w.api.objects[namespaces][ns] == nil {
				w.breach("%s %s is left in a namespace that is gone", res, keyOf(o))
			}
		}
	}
}

// finalize is the finalize subresource of namespaces.
func (a *api) finalize(n *v1.Namespace) (object, error) {
	old, err := a.target(namespaces, n)
	if err != nil {
		return nil, err
	}
	next := clone(old.(*v1.Namespace))
	next.Spec.Finalizers = slices.Clone(n.Spec.Finalizers)
	if equality.Semantic.DeepEqual(old, next) {
		return old, nil
	}
	return a.put(namespaces, next), nil
}

// isFrozen says whether next changes what an immutable ConfigMap has for good.
func isFrozen(old, next object) bool {
	o, ok := old.(*v1.ConfigMap)
	return ok && o.Immutable != nil && *o.Immutable && !equality.Semantic.DeepEqual(o.Data, next.(*v1.ConfigMap).Data)
}

func (c coreV1) Namespaces() coreclient.NamespaceInterface {
	return namespaceClient{typed: typed[*v1.Namespace]{c.life, namespaces, ""}}
}

func (c coreV1) ServiceAccounts(ns string) coreclient.ServiceAccountInterface {
	return serviceAccountClient{typed: typed[*v1.ServiceAccount]{c.life, serviceAccounts, ns}}
}

func (c coreV1) ConfigMaps(ns string) coreclient.ConfigMapInterface {
	return configMapClient{typed: typed[*v1.ConfigMap]{c.life, configMaps, ns}}
}

type (
	restOfNamespaces      struct{ coreclient.NamespaceInterface }
	restOfServiceAccounts struct {
		coreclient.ServiceAccountInterface
	}
	restOfConfigMaps struct{ coreclient.ConfigMapInterface }

	namespaceClient struct {
		typed[*v1.Namespace]
		restOfNamespaces
	}
	serviceAccountClient struct {
		typed[*v1.ServiceAccount]
		restOfServiceAccounts
	}
	configMapClient struct {
		typed[*v1.ConfigMap]
		restOfConfigMaps
	}
)

func (c namespaceClient) Finalize(ctx context.Context, n *v1.Namespace, _ metav1.UpdateOptions) (*v1.Namespace, error) {
	r := request{verb: "finalize", res: c.res, key: n.Name, obj: n}
	return answer[*v1.Namespace](c.life.call(ctx, r, func(a *api) (object, error) { return a.finalize(n) }))
}

func (c podClient) List(ctx context.Context, _ metav1.ListOptions) (*v1.PodList, error) {
	list := &v1.PodList{}
	_, err := c.life.call(ctx, request{verb: "list", res: pods, key: c.namespace}, func(a *api) (object, error) {
		for _, pod := range listOf[*v1.Pod](a, pods) {
			if c.namespace == "" || pod.Namespace == c.namespace {
				list.Items = append(list.Items, *clone(pod))
			}
		}
		return nil, nil
	})
	return list, err
}

// discoverer says what the server has, to the loop that ends namespaces.
type discoverer struct{ life *life }

// Kinds by group, most of which can be deleted as a collection.
var (
	core = &metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
		deletable(configMaps), deletable(pods, "deletecollection"), deletable(serviceAccounts, "deletecollection"),
	}}
	coreOfServices = &metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
		deletable(services), deletable(endpointsRes, "deletecollection"),
	}}
	ofSlices = &metav1.APIResourceList{GroupVersion: "discovery.k8s.io/v1", APIResources: []metav1.APIResource{
		deletable(endpointSlices, "deletecollection"),
	}}
	ofApps = &metav1.APIResourceList{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
		deletable(deployments, "deletecollection"), deletable(replicaSets, "deletecollection"),
	}}
)

func deletable(res resource, more ...string) metav1.APIResource {
	return metav1.APIResource{Name: string(res), Namespaced: true, Verbs: append([]string{"list", "delete"}, more...)}
}

// ServerPreferredNamespacedResourcesWithContext sometimes does not know of one group.
func (d discoverer) ServerPreferredNamespacedResourcesWithContext(ctx context.Context) ([]*metav1.APIResourceList, error) {
	w := d.life.w
	_, err := d.life.call(ctx, request{verb: "get", key: "/apis"}, func(*api) (object, error) { return nil, nil })
	if err != nil {
		return nil, err
	}
	known := []*metav1.APIResourceList{core}
	if w.profile.services {
		known = append(known, coreOfServices, ofSlices)
	}
	if !w.faults || !w.profile.errors || w.rng.IntN(8) > 0 {
		return append(known, ofApps), nil
	}
	gv := schema.GroupVersion{Group: "apps", Version: "v1"}
	return known, &clientdiscovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{gv: errors.New("no answer")}}
}

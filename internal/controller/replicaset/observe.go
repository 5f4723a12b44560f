package replicaset

import (
	"fmt"
	"slices"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"mend/internal/ownership"
	"mend/internal/view"
)

// byController is this loop's index by [view.ByController].
const byController = "replicaset/controller"

// snapshots reads the informers' caches.
type snapshots struct{ sets, pods cache.Indexer }

// observe returns what a plan for the ReplicaSet named by key needs; false if
// there is no such ReplicaSet.
func (s snapshots) observe(key string) (Observed, bool, error) {
	obj, ok, err := s.sets.GetByKey(key)
	if err != nil || !ok {
		return Observed{}, false, err
	}
	rs := obj.(*apps.ReplicaSet)
	owned, err := s.podsAt(string(rs.UID))
	if err != nil {
		return Observed{}, false, err
	}
	orphans, err := s.podsAt(view.OrphansOf(rs.Namespace))
	if err != nil {
		return Observed{}, false, err
	}
	o := Observed{ReplicaSet: rs, Pods: distinct(owned, orphans)}
	if len(owned) > desired(rs) {
		o.PodsOnNode, err = s.siblingsByNode(rs)
	}
	return o, err == nil, err
}

// distinct joins the two lists. A Pod released between the two reads is in both,
// as an orphan in the second, which is the newer.
func distinct(owned, orphans []*v1.Pod) []*v1.Pod {
	if len(orphans) == 0 {
		return owned
	}
	released := make(map[types.UID]bool, len(orphans))
	for _, pod := range orphans {
		released[pod.UID] = true
	}
	owned = slices.DeleteFunc(owned, func(pod *v1.Pod) bool { return released[pod.UID] })
	return append(owned, orphans...)
}

func (s snapshots) podsAt(indexKey string) ([]*v1.Pod, error) {
	objs, err := s.pods.ByIndex(byController, indexKey)
	if err != nil {
		return nil, err
	}
	pods := make([]*v1.Pod, len(objs))
	for i, obj := range objs {
		pods[i] = obj.(*v1.Pod)
	}
	return pods, nil
}

// siblingsByNode counts the active Pods of all ReplicaSets that have the same
// controller as rs; without a controller, those of rs alone.
func (s snapshots) siblingsByNode(rs *apps.ReplicaSet) (map[string]int, error) {
	uids := []types.UID{rs.UID}
	if owner := metav1.GetControllerOfNoCopy(rs); owner != nil {
		siblings, err := s.sets.ByIndex(byController, string(owner.UID))
		if err != nil {
			return nil, err
		}
		uids = uids[:0]
		for _, obj := range siblings {
			uids = append(uids, obj.(*apps.ReplicaSet).UID)
		}
	}
	byNode := map[string]int{}
	for _, uid := range uids {
		pods, err := s.podsAt(string(uid))
		if err != nil {
			return nil, err
		}
		for _, pod := range pods {
			if isActive(pod) {
				byNode[pod.Spec.NodeName]++
			}
		}
	}
	return byNode, nil
}

// watch says which events wake which ReplicaSet.
func (c *Controller) watch(factory informers.SharedInformerFactory, wake func(key string)) error {
	w := waker{view: c.view, wake: wake}
	w.watchRoutes(c.routing)
	_, err := factory.Apps().V1().ReplicaSets().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.named,
		UpdateFunc: func(_, obj any) { w.named(obj) },
		DeleteFunc: w.named,
	})
	if err != nil {
		return err
	}
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(
		c.pace.paced(ownership.Waker{Kind: kind, Wake: w.wake, Selecting: w.selecting}.Handler()))
	if err != nil {
		return err
	}
	_, err = factory.Core().V1().ServiceAccounts().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { w.serviceAccountAdded(obj.(*v1.ServiceAccount)) },
	})
	return err
}

// waker maps events to the keys of ReplicaSets.
type waker struct {
	view snapshots
	wake func(key string)
}

func (w waker) named(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		w.wake(key)
	}
}

// selecting wakes the ReplicaSets that could adopt the Pod.
func (w waker) selecting(pod metav1.Object) {
	w.eachIn(pod.GetNamespace(), func(rs *apps.ReplicaSet) bool {
		selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
		return err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.GetLabels()))
	})
}

// serviceAccountAdded wakes the ReplicaSets whose Pods were refused and may have
// been so for want of this ServiceAccount.
func (w waker) serviceAccountAdded(account *v1.ServiceAccount) {
	w.eachIn(account.Namespace, func(rs *apps.ReplicaSet) bool {
		name := rs.Spec.Template.Spec.ServiceAccountName
		if name == "" {
			name = "default"
		}
		return name == account.Name && slices.ContainsFunc(rs.Status.Conditions, isReplicaFailure)
	})
}

func (w waker) eachIn(namespace string, fits func(*apps.ReplicaSet) bool) {
	objs, err := w.view.sets.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		panic(fmt.Sprintf("ReplicaSets are not indexed by namespace: %v", err)) // the factory always does
	}
	for _, obj := range objs {
		if rs := obj.(*apps.ReplicaSet); fits(rs) {
			w.named(rs)
		}
	}
}

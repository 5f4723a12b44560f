package deployment

import (
	"fmt"

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
const byController = "deployment/controller"

// snapshots reads the informers' caches.
type snapshots struct{ deployments, sets, pods cache.Indexer }

// observe returns what a plan for the Deployment named by key needs; false if
// there is no such Deployment.
func (s snapshots) observe(key string) (Observed, bool, error) {
	obj, ok, err := s.deployments.GetByKey(key)
	if err != nil || !ok {
		return Observed{}, false, err
	}
	o := Observed{Deployment: obj.(*apps.Deployment)}
	seen := map[types.UID]bool{} // released between the two reads: in both
	for _, indexKey := range []string{string(o.Deployment.UID), view.OrphansOf(o.Deployment.Namespace)} {
		objs, err := s.sets.ByIndex(byController, indexKey)
		if err != nil {
			return Observed{}, false, err
		}
		for _, obj := range objs {
			if rs := obj.(*apps.ReplicaSet); !seen[rs.UID] {
				seen[rs.UID] = true
				o.ReplicaSets = append(o.ReplicaSets, rs)
			}
		}
	}
	if o.Deployment.Spec.Strategy.Type == apps.RecreateDeploymentStrategyType {
		o.RunningPods, err = s.runningPods(o.ReplicaSets)
	}
	return o, err == nil, err
}

func (s snapshots) runningPods(sets []*apps.ReplicaSet) (map[types.UID]int, error) {
	running := map[types.UID]int{}
	for _, rs := range sets {
		objs, err := s.pods.ByIndex(byController, string(rs.UID))
		if err != nil {
			return nil, err
		}
		for _, obj := range objs {
			if !hasEnded(obj.(*v1.Pod)) {
				running[rs.UID]++
			}
		}
	}
	return running, nil
}

func hasEnded(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// watch says which events wake which Deployment.
func (c *Controller) watch(factory informers.SharedInformerFactory, wake func(key string)) error {
	w := waker{view: c.view, wake: wake}
	_, err := factory.Apps().V1().Deployments().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.named,
		UpdateFunc: func(_, obj any) { w.named(obj) },
		DeleteFunc: w.named,
	})
	if err != nil {
		return err
	}
	_, err = factory.Apps().V1().ReplicaSets().Informer().AddEventHandler(w.owned().Handler())
	if err != nil {
		return err
	}
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, obj any) { w.podChanged(old.(*v1.Pod), obj.(*v1.Pod)) },
		DeleteFunc: w.podDeleted,
	})
	return err
}

// waker maps events to the keys of Deployments.
type waker struct {
	view snapshots
	wake func(key string)
}

func (w waker) named(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		w.wake(key)
	}
}

// owned wakes Deployments by what happens to ReplicaSets.
func (w waker) owned() ownership.Waker {
	return ownership.Waker{Kind: kind, Wake: w.wake, Selecting: w.selecting}
}

// selecting wakes the Deployments that could adopt the ReplicaSet.
func (w waker) selecting(rs metav1.Object) {
	objs, err := w.view.deployments.ByIndex(cache.NamespaceIndex, rs.GetNamespace())
	if err != nil {
		panic(fmt.Sprintf("Deployments are not indexed by namespace: %v", err)) // the factory always does
	}
	for _, obj := range objs {
		d := obj.(*apps.Deployment)
		selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(rs.GetLabels())) {
			w.named(d)
		}
	}
}

// podChanged and podDeleted wake a Deployment that waits, under Recreate, for its
// old Pods to end.
func (w waker) podChanged(old, pod *v1.Pod) {
	if hasEnded(pod) && !hasEnded(old) {
		w.waitingFor(pod)
	}
}

func (w waker) podDeleted(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if pod, ok := obj.(*v1.Pod); ok {
		w.waitingFor(pod)
	}
}

func (w waker) waitingFor(pod *v1.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "ReplicaSet" {
		return
	}
	obj, ok, err := w.view.sets.GetByKey(pod.Namespace + "/" + owner.Name)
	if err != nil || !ok {
		return
	}
	rs := obj.(*apps.ReplicaSet)
	owner = metav1.GetControllerOfNoCopy(rs)
	if owner == nil {
		return
	}
	obj, ok, err = w.view.deployments.GetByKey(rs.Namespace + "/" + owner.Name)
	if err != nil || !ok {
		return
	}
	if d := obj.(*apps.Deployment); d.Spec.Strategy.Type == apps.RecreateDeploymentStrategyType {
		w.owned().Owner(rs)
	}
}

package replicaset

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"mend/internal/ownership"
)

// Routing knows whether requests reach a Pod. Its methods do not block and may be
// called from any goroutine.
type Routing interface {
	// IsRouted says whether every node's proxy leads to the Pod, in every Service
	// that selects it.
	IsRouted(pod *v1.Pod) bool
	// OnRouted calls f with each Pod for which IsRouted was false and is true now.
	OnRouted(f func(pod types.NamespacedName))
}

// routedLimit is for how long a ready Pod may count as unavailable because
// requests do not reach it: a node whose proxy is dead must not stop a rollout.
const routedLimit = 2 * time.Second

// unrouted are the Pods that became ready a moment ago and that requests do not
// reach yet.
func unrouted(routing Routing, pods []*v1.Pod, now time.Time) map[types.UID]bool {
	if routing == nil {
		return nil
	}
	var waiting map[types.UID]bool
	for _, pod := range pods {
		if routedAt(pod, now).IsZero() || routing.IsRouted(pod) {
			continue
		}
		if waiting == nil {
			waiting = map[types.UID]bool{}
		}
		waiting[pod.UID] = true
	}
	return waiting
}

// routedAt is when a ready Pod counts as routed whatever the proxies say; zero if
// that was before now, or the Pod is no replica that is ready.
func routedAt(pod *v1.Pod, now time.Time) time.Time {
	since := readySince(pod)
	if since.IsZero() || !isActive(pod) || isAhead(since, now) {
		return time.Time{}
	}
	if at := since.Add(routedLimit); at.After(now) {
		return at
	}
	return time.Time{}
}

// isAvailable says whether the Pod is available as Kubernetes has it, and requests
// reach it.
func isAvailable(pod *v1.Pod, minReadySeconds int32, unrouted map[types.UID]bool, now time.Time) bool {
	waits := unrouted[pod.UID] && !routedAt(pod, now).IsZero()
	return !waits && hasBeenReady(pod, minReadySeconds, now)
}

// watchRoutes wakes the owner of a Pod that requests reach from now on.
func (w waker) watchRoutes(routing Routing) {
	if routing == nil {
		return
	}
	owners := ownership.Waker{Kind: kind, Wake: w.wake, Selecting: func(metav1.Object) {}}
	routing.OnRouted(func(name types.NamespacedName) {
		if obj, ok, err := w.view.pods.GetByKey(cache.NewObjectName(name.Namespace, name.Name).String()); err == nil && ok {
			owners.Owner(obj.(*v1.Pod))
		}
	})
}

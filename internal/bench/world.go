package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/view"
)

// world is what the watches have shown of the namespace. Counts are kept per
// event, so that looking costs nothing however many Pods there are.
type world struct {
	stop context.CancelFunc

	mu          sync.Mutex
	changed     chan struct{} // closed at the next event
	deployments map[string]*appsv1.Deployment
	wanted      map[string]int64 // Deployment → generation
	pods        map[types.UID]*corev1.Pod
	readySince  map[types.UID]time.Time
}

func watchWorld(ctx context.Context, client kubernetes.Interface, namespace string) (*world, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &world{stop: cancel, changed: make(chan struct{}), deployments: map[string]*appsv1.Deployment{},
		wanted: map[string]int64{}, pods: map[types.UID]*corev1.Pod{}, readySince: map[types.UID]time.Time{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTransform(view.StripManagedFields))
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Apps().V1().Deployments().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { w.see(obj, false) },
			UpdateFunc: func(_, obj any) { w.see(obj, false) },
			DeleteFunc: func(obj any) { w.see(obj, true) },
		})
		if err != nil {
			cancel()
			return nil, err
		}
	}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			cancel()
			return nil, fmt.Errorf("no list of %v", kind)
		}
	}
	return w, nil
}

func (w *world) see(obj any, gone bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch seen := obj.(type) {
	case *appsv1.Deployment:
		w.deployments[seen.Name] = seen
	case *corev1.Pod:
		w.seePod(seen, gone)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) seePod(pod *corev1.Pod, gone bool) {
	if gone {
		delete(w.pods, pod.UID)
		delete(w.readySince, pod.UID)
		return
	}
	w.pods[pod.UID] = pod
	if _, known := w.readySince[pod.UID]; !known && isReady(pod) {
		w.readySince[pod.UID] = time.Now()
	}
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && podutil.IsPodReady(pod)
}

// expect notes the generation that a Deployment's status must have reached.
func (w *world) expect(deployment *appsv1.Deployment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted[deployment.Name] = deployment.Generation
}

// await blocks until reached holds. It looks again after each event.
func (w *world) await(ctx context.Context, reached func() string) error {
	for {
		w.mu.Lock()
		why, changed := reached(), w.changed
		w.mu.Unlock()
		if why == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w; %s", context.Cause(ctx), why)
		}
	}
}

// settled waits until n Deployments are complete and exactly so many Pods exist.
func (w *world) settled(ctx context.Context, n, pods int) error {
	return w.await(ctx, func() string {
		if len(w.deployments) != n {
			return fmt.Sprintf("%d of %d Deployments are seen", len(w.deployments), n)
		}
		if len(w.pods) != pods {
			return fmt.Sprintf("%d Pods, want %d", len(w.pods), pods)
		}
		for name, deployment := range w.deployments {
			if !complete(deployment, w.wanted[name]) {
				return fmt.Sprintf("Deployment %s has %d of %d updated, %d available", name, deployment.Status.UpdatedReplicas,
					*deployment.Spec.Replicas, deployment.Status.AvailableReplicas)
			}
		}
		return ""
	})
}

func complete(d *appsv1.Deployment, generation int64) bool {
	want := *d.Spec.Replicas
	return d.Generation >= generation && d.Status.ObservedGeneration >= d.Generation &&
		d.Status.UpdatedReplicas == want && d.Status.Replicas == want && d.Status.AvailableReplicas == want
}

// anyReady picks the Pod that has been ready longest, which differs from heal to
// heal.
func (w *world) anyReady(ctx context.Context) (*corev1.Pod, error) {
	var oldest *corev1.Pod
	err := w.await(ctx, func() string {
		for uid, since := range w.readySince {
			pod := w.pods[uid]
			if pod != nil && isReady(pod) && (oldest == nil || since.Before(w.readySince[oldest.UID])) {
				oldest = pod
			}
		}
		if oldest == nil {
			return "no Pod is ready"
		}
		return ""
	})
	return oldest, err
}

// replaced waits until victim is gone or going and as many Pods as before are
// ready; it returns when the newest of them became so.
func (w *world) replaced(ctx context.Context, victim *corev1.Pod, pods int) (time.Time, error) {
	var newest time.Time
	err := w.await(ctx, func() string {
		if pod := w.pods[victim.UID]; pod != nil && pod.DeletionTimestamp == nil {
			return victim.Name + " is not being deleted yet"
		}
		ready := 0
		for uid, since := range w.readySince {
			if pod := w.pods[uid]; pod != nil && isReady(pod) {
				ready++
				if since.After(newest) {
					newest = since
				}
			}
		}
		if ready < pods {
			return fmt.Sprintf("%d of %d Pods are ready", ready, pods)
		}
		return ""
	})
	return newest, err
}

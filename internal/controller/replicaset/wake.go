package replicaset

import (
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/clock"
)

// growthInterval is the least time between two looks at one ReplicaSet of which the
// second would only see that Pods came on. Each look goes through all its Pods: of
// 10,000 Pods that start, 30,000 looks would read 300,000,000. What it delays is
// held back by statusInterval anyway. It is longer for many Pods, so that looking at
// them takes no more than a tenth of a core.
func growthInterval(pods int) time.Duration {
	return max(25*time.Millisecond, time.Duration(pods)*10*time.Microsecond)
}

// pace wakes ReplicaSets for what may wait.
type pace struct {
	clock clock.PassiveClock
	wake  func(key string)
	later func(key string, at time.Time)

	mu   sync.Mutex
	next map[string]time.Time // until when growth waits, by key
}

// looks notes that a sync begins to look at so many Pods.
func (p *pace) looks(key string, at time.Time, pods int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = map[string]time.Time{}
	}
	p.next[key] = at.Add(growthInterval(pods))
}

func (p *pace) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.next, key)
}

// grew wakes the ReplicaSet, at once if it was not looked at lately.
func (p *pace) grew(key string) {
	p.mu.Lock()
	next := p.next[key]
	p.mu.Unlock()
	if next.After(p.clock.Now()) {
		p.later(key, next)
		return
	}
	p.wake(key)
}

// paced is the handler of Pods that lets growth wait; all else goes to urgent.
func (p *pace) paced(urgent cache.ResourceEventHandlerFuncs) cache.ResourceEventHandlerFuncs {
	at := urgent.UpdateFunc
	urgent.UpdateFunc = func(old, obj any) {
		was, is := old.(*v1.Pod), obj.(*v1.Pod)
		if owner := metav1.GetControllerOfNoCopy(is); owner != nil && owner.Kind == kind.Kind && cameOn(was, is) {
			p.grew(is.Namespace + "/" + owner.Name)
			return
		}
		at(old, obj)
	}
	return urgent
}

// cameOn says whether a Pod changed in no way that calls for another Pod: it was
// bound, it started, it became ready.
func cameOn(was, is *v1.Pod) bool {
	return was.UID == is.UID && isActive(was) && isActive(is) &&
		(podutil.IsPodReady(is) || !podutil.IsPodReady(was)) &&
		reflect.DeepEqual(was.Labels, is.Labels) && reflect.DeepEqual(was.OwnerReferences, is.OwnerReferences)
}

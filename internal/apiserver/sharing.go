package apiserver

import (
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"
)

// sharingCodec lets Pods of one controller share what they were made from. The
// watch cache keeps every version of the last 75 seconds, and of 5,000 Pods that
// come up that is 20,000 times the same containers, tolerations and labels.
//
// It may, because what a watch decodes is never changed: the cache shares each
// object among all who read it already.
type sharingCodec struct {
	runtime.Codec

	mu   sync.Mutex
	last map[types.UID]*core.Pod // by controller
}

// mostShared bounds the controllers that are remembered. Beyond it all are
// forgotten, and remembered anew with their next Pods.
const mostShared = 4096

func newSharingCodec(codec runtime.Codec) *sharingCodec {
	return &sharingCodec{Codec: codec, last: map[types.UID]*core.Pod{}}
}

// Decode implements runtime.Decoder. Only watches decode into nothing given.
func (c *sharingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if pod, ok := obj.(*core.Pod); ok && err == nil && into == nil {
		c.share(pod)
	}
	return obj, kind, err
}

func (c *sharingCodec) share(pod *core.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return
	}
	c.mu.Lock()
	other := c.last[owner.UID]
	c.mu.Unlock()
	if other != nil {
		share(pod, other)
	}
	// Only now may others look at it: watches decode several at once.
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.last) >= mostShared {
		clear(c.last)
	}
	c.last[owner.UID] = pod
}

// share takes over what other, which nobody changes, has alike.
func share(pod, other *core.Pod) {
	reuse(&pod.Labels, other.Labels)
	reuse(&pod.Annotations, other.Annotations)
	reuse(&pod.OwnerReferences, other.OwnerReferences)
	reuse(&pod.Spec.InitContainers, other.Spec.InitContainers)
	reuse(&pod.Spec.Containers, other.Spec.Containers)
	reuse(&pod.Spec.Volumes, other.Spec.Volumes)
	reuse(&pod.Spec.Tolerations, other.Spec.Tolerations)
	reuse(&pod.Spec.SecurityContext, other.Spec.SecurityContext)
	reuse(&pod.Spec.Affinity, other.Spec.Affinity)
	reuse(&pod.Spec.NodeSelector, other.Spec.NodeSelector)
	reuse(&pod.Spec.TopologySpreadConstraints, other.Spec.TopologySpreadConstraints)
}

// reuse takes theirs where it says the same as mine.
func reuse[T any](mine *T, theirs T) {
	if reflect.DeepEqual(*mine, theirs) {
		*mine = theirs
	}
}

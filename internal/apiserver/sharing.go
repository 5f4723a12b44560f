package apiserver

import (
	"reflect"
	"sync"
	"weak"

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
// Versions of one Pod share their status and its managers, too: to be deleted changes
// neither.
//
// They may, because what a watch decodes is never changed: the cache shares each
// object among all who read it already.
type sharingCodec struct {
	runtime.Codec

	mu sync.Mutex
	// last is by controller, versions by Pod. Neither keeps a Pod in memory.
	last, versions map[types.UID]weak.Pointer[core.Pod]
}

// mostShared bounds what is remembered. Beyond it all is forgotten, and remembered anew
// with the next Pods.
const mostShared = 16384

func newSharingCodec(codec runtime.Codec) *sharingCodec {
	return &sharingCodec{Codec: codec, last: map[types.UID]weak.Pointer[core.Pod]{}, versions: map[types.UID]weak.Pointer[core.Pod]{}}
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
	other, before := c.last[owner.UID].Value(), c.versions[pod.UID].Value()
	c.mu.Unlock()
	if other != nil {
		share(pod, other)
	}
	if before != nil {
		reuse(&pod.Status, before.Status)
		shareManagers(pod.ManagedFields, before.ManagedFields)
	}
	// Only now may others look at it: watches decode several at once.
	this := weak.Make(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	remember(c.last, owner.UID, this)
	remember(c.versions, pod.UID, this)
}

func remember(in map[types.UID]weak.Pointer[core.Pod], as types.UID, pod weak.Pointer[core.Pod]) {
	if len(in) >= mostShared {
		clear(in)
	}
	in[as] = pod
}

// share takes over what other, which nobody changes, has alike.
func share(pod, other *core.Pod) {
	reuse(&pod.Labels, other.Labels)
	reuse(&pod.Annotations, other.Annotations)
	reuse(&pod.OwnerReferences, other.OwnerReferences)
	shareManagers(pod.ManagedFields, other.ManagedFields)
	reuse(&pod.Spec.InitContainers, other.Spec.InitContainers)
	reuse(&pod.Spec.Containers, other.Spec.Containers)
	reuse(&pod.Spec.Volumes, other.Spec.Volumes)
	reuse(&pod.Spec.Tolerations, other.Spec.Tolerations)
	reuse(&pod.Spec.SecurityContext, other.Spec.SecurityContext)
	reuse(&pod.Spec.Affinity, other.Spec.Affinity)
	reuse(&pod.Spec.NodeSelector, other.Spec.NodeSelector)
	reuse(&pod.Spec.TopologySpreadConstraints, other.Spec.TopologySpreadConstraints)
}

// shareManagers shares what the same managers own: the time at which they came to is
// their own.
func shareManagers(mine, theirs []metav1.ManagedFieldsEntry) {
	for i := range mine {
		for j := range theirs {
			if mine[i].Manager == theirs[j].Manager && mine[i].Subresource == theirs[j].Subresource {
				reuse(&mine[i].FieldsV1, theirs[j].FieldsV1)
			}
		}
	}
}

// reuse takes theirs where it says the same as mine.
func reuse[T any](mine *T, theirs T) {
	if reflect.DeepEqual(*mine, theirs) {
		*mine = theirs
	}
}

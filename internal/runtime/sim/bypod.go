package sim

import (
	"slices"

	kubelettypes "k8s.io/kubelet/pkg/types"
)

// byPod holds what carries a Pod's UID as a label, by UID and oldest first. An
// agent asks for one Pod's containers several times in that Pod's life; a look at
// all 10,000 of the node each time would make every Pod dearer than the one before.
type byPod[T comparable] map[string][]T

func (b byPod[T]) add(labels map[string]string, member T) {
	if uid := labels[kubelettypes.KubernetesPodUIDLabel]; uid != "" {
		b[uid] = append(b[uid], member)
	}
}

func (b byPod[T]) remove(labels map[string]string, member T) {
	uid := labels[kubelettypes.KubernetesPodUIDLabel]
	left := slices.DeleteFunc(b[uid], func(other T) bool { return other == member })
	if len(left) == 0 {
		delete(b, uid)
		return
	}
	b[uid] = left
}

// asked are the members that a label selector can mean, if it names a Pod.
func (b byPod[T]) asked(selector map[string]string) (members []T, named bool) {
	uid, named := selector[kubelettypes.KubernetesPodUIDLabel]
	return b[uid], named && uid != ""
}

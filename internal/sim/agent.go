package sim

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// agentActs lets the agent of some node do the next thing about one of its Pods:
// mostly what brings it on, and where the seed has losses, sometimes what ends it.
func (w *world) agentActs() {
	pod, ok := pick(w, aPod, w.isOnNode)
	if !ok {
		return
	}
	if w.profile.losses && w.rng.IntN(12) == 0 && isActive(pod) {
		w.breakDown(pod)
		return
	}
	w.bringOn(pod)
}

// isOnNode says whether there is an agent that knows the Pod.
func (w *world) isOnNode(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && w.api.objects[nodes][pod.Spec.NodeName] != nil && !w.silences.silent[pod.Spec.NodeName]
}

// bringOn moves a Pod one state on; false when it has arrived.
func (w *world) bringOn(pod *v1.Pod) bool {
	_, ready := readySince(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		w.note("agent: Pod %s has ended", pod.Name)
		must(w.api.delete(pods, keyOf(pod), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	case isOver(pod):
		return false
	case pod.Status.Phase != v1.PodRunning:
		change(w.api, pods, pod, true, func(p *v1.Pod) {
			p.Status.Phase = v1.PodRunning
			w.giveAddress(p)
			setPodCondition(p, v1.PodReady, v1.ConditionFalse, w.clock.Now())
		})
		w.note("agent: Pod %s runs", pod.Name)
	case !ready && pod.Spec.Containers[0].Image != badImage:
		w.setReady(pod, v1.ConditionTrue)
		w.note("agent: Pod %s is ready", pod.Name)
	default:
		return false
	}
	return true
}

func (w *world) setReady(pod *v1.Pod, value v1.ConditionStatus) {
	change(w.api, pods, pod, true, func(p *v1.Pod) { setPodCondition(p, v1.PodReady, value, w.clock.Now()) })
}

// breakDown makes a Pod unready, or ends it.
func (w *world) breakDown(pod *v1.Pod) {
	if _, ready := readySince(pod); ready && w.rng.IntN(2) == 0 {
		w.setReady(pod, v1.ConditionFalse)
		w.note("agent: Pod %s is not ready any more", pod.Name)
		return
	}
	phase := []v1.PodPhase{v1.PodFailed, v1.PodSucceeded}[w.rng.IntN(2)]
	change(w.api, pods, pod, true, func(p *v1.Pod) {
		p.Status.Phase = phase
		setPodCondition(p, v1.PodReady, v1.ConditionFalse, w.clock.Now())
	})
	w.note("agent: Pod %s is %s", pod.Name, phase)
}

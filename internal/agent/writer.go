package agent

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/agent/status"
)

// setStatus remembers what the Pod's status should be and has it written: at
// once, or, for the first steps of a Pod that comes up, after a moment in which a
// better one may replace it.
func (a *Agent) setStatus(p *pod, want v1.PodStatus) {
	p.mu.Lock()
	if p.status != nil && status.Equal(*p.status, want) {
		p.mu.Unlock()
		return
	}
	held := comesUp(p.api, want)
	p.status = &want
	p.mu.Unlock()
	if held {
		a.writer.AddAt(string(p.uid), a.cfg.Clock.Now().Add(statusHold))
	} else {
		a.writer.Add(string(p.uid))
	}
}

// comesUp says whether a status tells no more than that the Pod is on its way.
func comesUp(pod *v1.Pod, want v1.PodStatus) bool {
	if pod.DeletionTimestamp != nil || want.Phase != v1.PodPending || (pod.Status.Phase != "" && pod.Status.Phase != v1.PodPending) {
		return false
	}
	for _, c := range slices.Concat(want.InitContainerStatuses, want.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || (w.Reason != status.ReasonContainerCreating && w.Reason != status.ReasonPodInitializing) {
			return false
		}
	}
	return true
}

// putStatus writes the status over the object as last seen, which costs the API
// server least; where somebody else wrote in between, as a patch. The server leaves the
// spec as it is, whatever it is sent.
func (a *Agent) putStatus(ctx context.Context, pod *v1.Pod, merged v1.PodStatus) (*v1.Pod, error) {
	pods := a.cfg.Client.CoreV1().Pods(pod.Namespace)
	changed := &v1.Pod{ObjectMeta: *pod.ObjectMeta.DeepCopy(), Status: merged}
	written, err := pods.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if !apierrors.IsConflict(err) {
		return written, err
	}
	patch, err := status.Patch(pod.UID, pod.Status, merged)
	if err != nil {
		return nil, err
	}
	return pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// writeStatus brings the API to the status last asked for.
func (a *Agent) writeStatus(ctx context.Context, key string) (time.Time, error) {
	p := a.get(types.UID(key))
	if p == nil {
		return time.Time{}, nil
	}
	p.mu.Lock()
	pod, want, gone := p.api, p.status, p.gone
	p.mu.Unlock()
	if gone || pod == nil || want == nil {
		return time.Time{}, nil
	}
	merged := status.Merge(pod, pod.Status, *want)
	if status.Equal(pod.Status, merged) {
		return time.Time{}, nil
	}
	written, err := a.putStatus(ctx, pod, merged)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Gone, or another Pod has its name: the watch will say so.
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, err
	}
	p.mu.Lock()
	if p.newer(written) {
		p.api = written
	}
	waits := written.DeletionTimestamp != nil || podEnded(written)
	p.mu.Unlock()
	if waits {
		a.loop.Add(key) // it may go on once its final status is there
	}
	return time.Time{}, nil
}

func podEnded(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

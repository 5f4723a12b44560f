package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"mend/internal/loop"
)

const (
	eventScheduled = "Scheduled"
	eventFailed    = "FailedScheduling"
	// noteLimit is how long an event's text may be, in bytes.
	noteLimit = 1024
	// remindAfter is when a waiting Pod is reported again although nothing
	// changed: events expire, and kubectl describe shows the reason only there.
	// Upstream retries such Pods in the same rhythm.
	remindAfter = 5 * time.Minute
)

// podAPI is what the scheduler writes through; the simulation puts faults here.
type podAPI interface {
	// Bind assigns the Pod to the binding's target.
	Bind(ctx context.Context, binding *v1.Binding) error
	// Get reads the Pod as it is now, not from a cache.
	Get(ctx context.Context, namespace, name string) (*v1.Pod, error)
	// PatchStatus applies a strategic merge patch to the Pod's status.
	PatchStatus(ctx context.Context, namespace, name string, patch []byte) error
}

// clientAPI is podAPI on a real client.
type clientAPI struct{ client kubernetes.Interface }

func (a clientAPI) Bind(ctx context.Context, binding *v1.Binding) error {
	return a.client.CoreV1().Pods(binding.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
}

func (a clientAPI) Get(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return a.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (a clientAPI) PatchStatus(ctx context.Context, namespace, name string, patch []byte) error {
	_, err := a.client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

// apply carries a plan out and returns when to report again.
func (s *Scheduler) apply(ctx context.Context, d decision) (time.Time, error) {
	switch {
	case d.Bind != nil:
		return time.Time{}, s.bind(ctx, d.pod, d.Bind)
	case d.Gate != nil:
		return time.Time{}, s.setCondition(ctx, d.pod, v1.PodReasonSchedulingGated, d.Gate.Why)
	case d.Refuse != nil:
		if err := s.setCondition(ctx, d.pod, v1.PodReasonUnschedulable, d.Refuse.Message); err != nil {
			return time.Time{}, err
		}
		s.events.Event(d.pod, v1.EventTypeWarning, eventFailed, shorten(d.Refuse.Message))
		return s.clock.Now().Add(remindAfter), nil
	default:
		return time.Time{}, nil
	}
}

// bind sends the binding. The UID is its precondition: a Pod made anew under the
// same name must be planned for itself. The resourceVersion is not: our own
// condition may have just moved it on.
func (s *Scheduler) bind(ctx context.Context, pod *v1.Pod, to *Bind) error {
	err := s.api.Bind(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: to.Node},
	})
	switch {
	case err == nil:
		s.bound(pod, to)
		return nil
	case apierrors.IsNotFound(err):
		s.forget(pod)
		return nil
	case isRefusal(err):
		return s.resolve(ctx, pod, to, err)
	default:
		// Perhaps bound, perhaps not: the Pod goes on counting, and the next
		// sync sends the same binding.
		return err
	}
}

// resolve finds out what a refusal means. It need not mean that the Pod is not
// bound: an earlier binding of ours, its answer lost, or another's may have come
// through.
func (s *Scheduler) resolve(ctx context.Context, pod *v1.Pod, to *Bind, refusal error) error {
	live, err := s.api.Get(ctx, pod.Namespace, pod.Name)
	switch {
	case apierrors.IsNotFound(err):
		s.forget(pod)
		return nil
	case err != nil:
		return fmt.Errorf("binding refused (%w), and looking at the pod failed: %w", refusal, err)
	case live.UID != pod.UID, live.DeletionTimestamp != nil && live.Spec.NodeName == "":
		s.forget(pod)
		return nil
	case live.Spec.NodeName == "":
		s.forget(pod)
		return s.reportError(ctx, live, refusal)
	case live.Spec.NodeName == to.Node:
		s.bound(pod, to)
		return nil
	default:
		s.boundElsewhere(live)
		return nil
	}
}

func (s *Scheduler) bound(pod *v1.Pod, to *Bind) {
	s.mu.Lock()
	if a := s.assumed[pod.UID]; a != nil {
		a.confirmed = true
	}
	s.mu.Unlock()
	s.log.Info("pod bound", "pod", keyOf(pod), "node", to.Node)
	s.events.Event(pod, v1.EventTypeNormal, eventScheduled, to.Why)
}

// boundElsewhere counts the Pod where someone else put it.
func (s *Scheduler) boundElsewhere(live *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.assumed[live.UID]
	if a == nil {
		return // the cache was faster
	}
	planned := a.node
	a.node, a.confirmed = live.Spec.NodeName, true
	s.cluster.SetPod(live)
	s.tryOn(planned)
}

// forget takes back an assumption that did not come true.
func (s *Scheduler) forget(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.assumed[pod.UID] == nil {
		return
	}
	delete(s.assumed, pod.UID)
	if node := s.cluster.RemovePod(pod.UID); node != "" {
		s.tryOn(node)
	}
}

// isRefusal says whether the API server has surely not acted on this request: it
// answered, and with a no.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// reportError says that binding failed and returns the failure, for the loop to
// back off.
func (s *Scheduler) reportError(ctx context.Context, pod *v1.Pod, failure error) error {
	failure = fmt.Errorf("running Bind plugin %q: %w", "DefaultBinder", failure)
	s.events.Event(pod, v1.EventTypeWarning, eventFailed, shorten(failure.Error()))
	return errors.Join(failure, s.setCondition(ctx, pod, v1.PodReasonSchedulerError, failure.Error()))
}

// setCondition writes PodScheduled=False unless the Pod says the same already.
func (s *Scheduler) setCondition(ctx context.Context, pod *v1.Pod, reason, message string) error {
	condition := v1.PodCondition{
		Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(s.clock.Now()),
	}
	var now told
	for _, old := range pod.Status.Conditions {
		if old.Type == v1.PodScheduled && old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
			now = told{old.Reason, old.Message}
		}
	}
	if s.lastTold(pod.UID, now) == (told{reason, message}) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   map[string]any{"conditions": []v1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encode condition: %w", err)
	}
	err = s.api.PatchStatus(ctx, pod.Namespace, pod.Name, patch)
	switch {
	case err == nil:
		s.tell(pod, told{reason, message})
		return nil
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return loop.ErrStale
	default:
		s.tell(pod, told{}) // it may have been written
		return err
	}
}

// lastTold is what was last written to the Pod, or now when nothing was.
func (s *Scheduler) lastTold(pod types.UID, now told) told {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.told[pod]; ok {
		return last
	}
	return now
}

func (s *Scheduler) tell(pod *v1.Pod, what told) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Its deletion may have been seen meanwhile, and comes only once.
	if cached := s.lookup(keyOf(pod)); cached != nil && cached.UID == pod.UID {
		s.told[pod.UID] = what
	}
}

func shorten(text string) string {
	const mark = " ..."
	if len(text) <= noteLimit {
		return text
	}
	return text[:noteLimit-len(mark)] + mark
}

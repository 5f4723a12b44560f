package replicaset

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"mend/internal/loop"
)

// podless is an API in which no Pod is left.
type podless struct{ kubernetes.Interface }

type podlessCore struct{ corev1.CoreV1Interface }

type noPods struct{ corev1.PodInterface }

func (podless) CoreV1() corev1.CoreV1Interface      { return podlessCore{} }
func (podlessCore) Pods(string) corev1.PodInterface { return noPods{} }
func (noPods) Patch(_ context.Context, name string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*v1.Pod, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

// The deletion of a Pod without a controller wakes no ReplicaSet, and a plan that
// adopts plans nothing else. The simulator found one that stayed without Pods.
func TestAdoptingAPodThatIsGoneLooksAgain(t *testing.T) {
	c := &Controller{client: podless{}, log: slog.New(slog.DiscardHandler)}
	err := c.adopt(t.Context(), "default/web", settled().ReplicaSet, Adopt{Pod: readyPod("bare")})
	if !errors.Is(err, loop.ErrStale) {
		t.Errorf("adopt = %v, want a later look", err)
	}
}

package serviceaccount

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	active := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	deleted := active.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{}
	terminating := active.DeepCopy()
	terminating.Status.Phase = corev1.NamespaceTerminating
	create := Plan{Create: "default", Why: "every active namespace has one"}
	tests := []struct {
		name string
		in   Observed
		want Plan
	}{
		{"an active namespace without one gets one", Observed{Namespace: active}, create},
		{"one that is there is left alone", Observed{Namespace: active, HasAccount: true}, Plan{}},
		{"a namespace being deleted gets none", Observed{Namespace: deleted}, Plan{}},
		{"a terminating namespace gets none", Observed{Namespace: terminating}, Plan{}},
		{"a namespace that is gone gets none", Observed{}, Plan{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := plan(tt.in); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

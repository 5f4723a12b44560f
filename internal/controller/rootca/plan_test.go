package rootca

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	active := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	terminating := active.DeepCopy()
	terminating.Status.Phase = corev1.NamespaceTerminating
	right := func(change ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
		m := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kube-root-ca.crt", Annotations: map[string]string{"kubernetes.io/description": description}},
			Data:       map[string]string{"ca.crt": "PEM"},
		}
		for _, f := range change {
			f(m)
		}
		return m
	}
	existing := func(m *corev1.ConfigMap) { m.UID, m.ResourceVersion = "u", "7" }
	spoilt := func(m *corev1.ConfigMap) { m.Data = map[string]string{"ca.crt": "other", "more": "x"} }
	immutable := func(m *corev1.ConfigMap) { yes := true; m.Immutable = &yes }
	tests := []struct {
		name string
		in   Observed
		want Plan
	}{
		{"an active namespace without one gets one", Observed{Namespace: active}, Plan{Create: right(), Why: "every active namespace has one"}},
		{"the right one is left alone", Observed{Namespace: active, ConfigMap: right(existing)}, Plan{}},
		{"wrong data are put right", Observed{Namespace: active, ConfigMap: right(existing, spoilt)}, Plan{Update: right(existing), Why: "it was changed"}},
		{"a missing description comes back", Observed{Namespace: active, ConfigMap: right(existing, func(m *corev1.ConfigMap) { m.Annotations = nil })},
			Plan{Update: right(existing), Why: "it was changed"}},
		{"another description is left alone",
			Observed{Namespace: active, ConfigMap: right(existing, func(m *corev1.ConfigMap) { m.Annotations[descriptionKey] = "mine" })}, Plan{}},
		{"a foreign label is left alone", Observed{Namespace: active, ConfigMap: right(existing, func(m *corev1.ConfigMap) { m.Labels = map[string]string{"a": "b"} })}, Plan{}},
		{"wrong and immutable: it has to go", Observed{Namespace: active, ConfigMap: right(existing, spoilt, immutable)},
			Plan{Delete: right(existing, spoilt, immutable), Why: "its data are wrong and cannot be changed"}},
		{"right and immutable is right", Observed{Namespace: active, ConfigMap: right(existing, immutable)}, Plan{}},
		{"one on its way out is waited for", Observed{Namespace: active, ConfigMap: right(existing, spoilt, func(m *corev1.ConfigMap) { m.DeletionTimestamp = &metav1.Time{} })}, Plan{}},
		{"a terminating namespace gets none", Observed{Namespace: terminating}, Plan{}},
		{"a namespace that is gone gets none", Observed{}, Plan{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.CA = "PEM"
			before := tt.in.ConfigMap.DeepCopy()
			if diff := cmp.Diff(tt.want, plan(tt.in)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.in.ConfigMap); diff != "" {
				t.Errorf("the plan changed its input:\n%s", diff)
			}
		})
	}
}

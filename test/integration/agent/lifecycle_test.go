package agent

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

func TestPodRunsAndIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.create(pod("web"))
	p := w.until("web", "Ready", podutil.IsPodReady)
	if p.Status.Phase != v1.PodRunning || p.Status.PodIP == "" || p.Status.HostIP != "192.0.2.10" || p.Status.StartTime == nil {
		t.Errorf("status: %+v", p.Status)
	}
	w.untilEvents(p.UID,
		`Normal Pulled Container image "mend.local/web:1.0" already present on machine and can be accessed by the pod | kubelet spec.containers{web}`,
		"Normal Created Container created | kubelet spec.containers{web}",
		"Normal Started Container started | kubelet spec.containers{web}")
	if err := w.client.CoreV1().Pods("default").Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.untilGone("web")
	w.untilEvents(p.UID, "Normal Killing Stopping container web")
}

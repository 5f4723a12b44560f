package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"mend/internal/testkit"
)

func (w *world) sandboxes() []*runtimeapi.PodSandbox {
	w.t.Helper()
	boxes, err := w.runtime.ListPodSandbox(context.Background(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return boxes
}

func TestContainersOutliveTheAgent(t *testing.T) {
	w := newWorld(t, exits("*crash*", 20*time.Millisecond, 1))
	w.create(pod("web"))
	w.create(pod("crash", from("crash:1")))
	p := w.until("web", "Ready", podutil.IsPodReady)
	w.until("crash", "CrashLoopBackOff", waitsFor("CrashLoopBackOff"))
	w.stop()
	w.start()
	// A Pod made now shows that the new agent is at work.
	w.create(pod("later"))
	w.until("later", "Ready", podutil.IsPodReady)
	now := w.until("web", "Ready", podutil.IsPodReady)
	if a, b := p.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		t.Errorf("was %+v, is %+v", a, b)
	}
	again := w.until("crash", "restarted", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount >= 2
	})
	if again.Status.ContainerStatuses[0].LastTerminationState.Terminated == nil {
		t.Errorf("the last end is forgotten: %+v", again.Status.ContainerStatuses[0])
	}
}

func TestPodsDeletedWhileTheAgentWasAwayAreCleanedUp(t *testing.T) {
	w := newWorld(t)
	w.create(pod("forced"))
	w.create(pod("graceful"))
	w.until("forced", "Ready", podutil.IsPodReady)
	w.until("graceful", "Ready", podutil.IsPodReady)
	w.stop()
	none := int64(0)
	if err := w.client.CoreV1().Pods("default").Delete(context.Background(), "forced", metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	w.delete("graceful")
	w.start()
	w.untilGone("graceful")
	testkit.WaitFor(t, "sandboxes to be removed", func() error {
		if left := w.sandboxes(); len(left) > 0 {
			return fmt.Errorf("%d sandboxes are left", len(left))
		}
		return nil
	})
}

func TestForcedDeletionEndsContainers(t *testing.T) {
	w := newWorld(t)
	w.create(pod("web"))
	w.until("web", "Ready", podutil.IsPodReady)
	none := int64(0)
	if err := w.client.CoreV1().Pods("default").Delete(context.Background(), "web", metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the sandbox to be removed", func() error {
		if left := w.sandboxes(); len(left) > 0 {
			return fmt.Errorf("%d sandboxes are left", len(left))
		}
		return nil
	})
}

func TestLostSandboxIsReplaced(t *testing.T) {
	w := newWorld(t)
	created := w.create(pod("web"))
	w.until("web", "Ready", podutil.IsPodReady)
	if err := w.runtime.StopPodSandbox(context.Background(), w.sandboxes()[0].Id); err != nil {
		t.Fatal(err)
	}
	w.until("web", "Ready again", func(p *v1.Pod) bool { return podutil.IsPodReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	w.untilEvents(created.UID, "Normal SandboxChanged Pod sandbox changed, it will be killed and re-created.")
}

func TestStopPodsEndsEverythingAndTheNextAgentGoesOn(t *testing.T) {
	w := newWorld(t)
	w.create(pod("web"))
	w.until("web", "Ready", podutil.IsPodReady)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := w.agent.StopPods(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.sandboxes() {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("sandbox %s runs", s.Id)
		}
	}
	w.stop()
	w.start()
	w.until("web", "Ready again", func(p *v1.Pod) bool { return podutil.IsPodReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
}

func TestNodeIsRegistered(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	var n *v1.Node
	testkit.WaitFor(t, "the node to be Ready", func() (err error) {
		n, err = w.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue && c.Reason == "KubeletReady" {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", n.Status.Conditions)
	})
	if n.Labels[v1.LabelHostname] != nodeName || n.Status.Capacity.Pods().Value() != 110 || n.Status.Capacity.Cpu().IsZero() ||
		n.Status.Addresses[0].Type != v1.NodeInternalIP || n.Status.NodeInfo.KubeletVersion == "" || len(n.Status.Images) == 0 {
		t.Errorf("node: %+v", n)
	}
	testkit.WaitFor(t, "the lease", func() error {
		_, err := w.client.CoordinationV1().Leases("kube-node-lease").Get(ctx, nodeName, metav1.GetOptions{})
		return err
	})
	// Extended resources of others survive, and become allocatable.
	patch := []byte(`{"status":{"capacity":{"example.com/dongle":"3"}}}`)
	if _, err := w.client.CoreV1().Nodes().Patch(ctx, nodeName, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the resource to be allocatable", func() error {
		n, err := w.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err == nil && n.Status.Allocatable.Name("example.com/dongle", "").Value() != 3 {
			err = fmt.Errorf("allocatable: %v", n.Status.Allocatable)
		}
		return err
	})
}

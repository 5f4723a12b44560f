package podgc

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// observeNode asks the server only after the quarantine. Pods are searched
// without an index: this happens when a node is lost, not in daily life.
func (c *controller) observeNode(ctx context.Context, name string) (NodeObserved, error) {
	node, err := c.nodes.Get(name)
	if err == nil {
		c.setPresent(name)
		if !isOutOfService(node) {
			return NodeObserved{State: NodeThere}, nil
		}
		return NodeObserved{State: NodeOutOfService, Pods: c.podsOn(name)}, nil
	}
	o := NodeObserved{State: NodeMissing, MissingSince: c.missingSince(name), Pods: c.podsOn(name)}
	if len(o.Pods) == 0 {
		c.setPresent(name) // a later Pod begins a quarantine of its own
		return o, nil
	}
	if c.clock.Now().Before(o.MissingSince.Add(quarantine)) {
		return o, nil
	}
	_, err = c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		o.State = NodeGone
	case err != nil:
		return NodeObserved{}, fmt.Errorf("read node %s: %w", name, err)
	default:
		o.State = NodeThere // the cache is behind
		c.setPresent(name)
	}
	return o, nil
}

func isOutOfService(node *corev1.Node) bool {
	isTainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
	isReady := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return isTainted && !isReady
}

func (c *controller) allPods() []*corev1.Pod {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache does not fail
	}
	return pods
}

func (c *controller) podsOn(node string) []*corev1.Pod {
	return slices.DeleteFunc(c.allPods(), func(pod *corev1.Pod) bool { return pod.Spec.NodeName != node })
}

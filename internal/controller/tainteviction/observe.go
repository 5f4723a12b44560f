package tainteviction

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"
)

// observe returns what there is to know about the Pod, and false when it is gone.
func (c *controller) observe(key string) (Observed, bool, error) {
	obj, exists, err := c.pods.GetByKey(key)
	if err != nil {
		return Observed{}, false, fmt.Errorf("read pod: %w", err)
	}
	if !exists {
		c.remember(key, count{})
		return Observed{}, false, nil
	}
	pod := obj.(*v1.Pod)
	o := Observed{Pod: pod, Since: c.remembered(key, pod.UID)}
	if pod.Spec.NodeName != "" {
		node, exists, err := c.nodes.GetByKey(pod.Spec.NodeName)
		if err != nil {
			return Observed{}, false, fmt.Errorf("read node: %w", err)
		}
		if exists {
			o.Taints = noExecute(node.(*v1.Node))
		}
	}
	return o, true, nil
}

func (c *controller) podHandler(again func(string)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod := obj.(*v1.Pod); pod.Spec.NodeName != "" {
				again(cache.MetaObjectToName(pod).String())
			}
		},
		UpdateFunc: func(old, obj any) {
			before, pod := old.(*v1.Pod), obj.(*v1.Pod)
			if before.UID != pod.UID || before.Spec.NodeName != pod.Spec.NodeName ||
				!equality.Semantic.DeepEqual(before.Spec.Tolerations, pod.Spec.Tolerations) {
				again(cache.MetaObjectToName(pod).String())
			}
		},
		DeleteFunc: func(obj any) {
			if late, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = late.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				again(cache.MetaObjectToName(pod).String()) // forgets it
			}
		},
	}
}

func (c *controller) nodeHandler(again func(string)) cache.ResourceEventHandler {
	podsOn := func(node *v1.Node) {
		keys, err := c.pods.IndexKeys(byNode, node.Name)
		if err != nil {
			c.log.Error("list pods of node", "node", node.Name, "err", err)
		}
		for _, key := range keys {
			again(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { podsOn(obj.(*v1.Node)) },
		UpdateFunc: func(old, obj any) {
			before, node := old.(*v1.Node), obj.(*v1.Node)
			if !equality.Semantic.DeepEqual(noExecute(before), noExecute(node)) {
				podsOn(node)
			}
		},
	}
}

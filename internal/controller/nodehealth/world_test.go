package nodehealth

import (
	"slices"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// start is when the tests begin: any time.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return start.Add(d) }

// aNode is Ready, without pressure or taints, but for what the changes say.
func aNode(name string, changes ...func(*v1.Node)) *v1.Node {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}}}
	for _, c := range reported {
		status := v1.ConditionFalse
		if c == v1.NodeReady {
			status = v1.ConditionTrue
		}
		node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: c, Status: status, Reason: "KubeletSaysSo"})
	}
	for _, change := range changes {
		change(node)
	}
	return node
}

func saying(which v1.NodeConditionType, status v1.ConditionStatus) func(*v1.Node) {
	return func(n *v1.Node) {
		if c := conditionOf(n, which); c != nil {
			c.Status = status
			return
		}
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: which, Status: status})
	}
}

func beating(second int64) func(*v1.Node) {
	return func(n *v1.Node) { conditionOf(n, v1.NodeReady).LastHeartbeatTime = metav1.Unix(second, 0) }
}

func tainted(key string, effect v1.TaintEffect) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: effect}) }
}

func mute(n *v1.Node) { n.Status.Conditions = nil }

func cordoned(n *v1.Node) { n.Spec.Unschedulable = true }

func inZone(zone string) func(*v1.Node) {
	return func(n *v1.Node) { n.Labels[v1.LabelTopologyZone] = zone }
}

func aLease(node string, second int64) *coordination.Lease {
	renewed := metav1.NewMicroTime(time.Unix(second, 0))
	return &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: node},
		Spec: coordination.LeaseSpec{RenewTime: &renewed}}
}

func aPod(name string, ready v1.ConditionStatus) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}}}
}

// heard and silent are a node's silence as seen at start.
var (
	heard  = silence{since: start, grace: gracePeriod}
	silent = silence{since: start.Add(-gracePeriod), grace: gracePeriod}
	free   = brake{evictAt: start}
)

// done is o after an action was carried out.
func done(o Observed, action Action) Observed {
	o.Node = o.Node.DeepCopy()
	switch a := action.(type) {
	case Register:
		o.IsNew = false
	case SetUnknown:
		for _, c := range a.Conditions {
			if old := conditionOf(o.Node, c.Type); old != nil {
				*old = c
			} else {
				o.Node.Status.Conditions = append(o.Node.Status.Conditions, c)
			}
		}
	case SetTaints:
		o.Node.Spec.Taints = slices.DeleteFunc(o.Node.Spec.Taints, func(t v1.Taint) bool { return hasTaint(a.Remove, t) })
		o.Node.Spec.Taints = append(o.Node.Spec.Taints, a.Add...)
	case MarkPod:
		o.Pods = slices.Clone(o.Pods)
		for i, pod := range o.Pods {
			if pod == a.Pod {
				o.Pods[i] = aPod(pod.Name, v1.ConditionFalse)
			}
		}
	}
	return o
}

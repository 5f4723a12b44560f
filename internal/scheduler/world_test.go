package scheduler

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// aNode has 4 cores, 8 GiB and room for 110 Pods, but for what the changes say.
func aNode(name string, changes ...func(*v1.Node)) *v1.Node {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"),
			v1.ResourcePods: resource.MustParse("110"),
		}},
	}
	for _, change := range changes {
		change(node)
	}
	return node
}

func allocatable(name v1.ResourceName, amount string) func(*v1.Node) {
	return func(n *v1.Node) { n.Status.Allocatable[name] = resource.MustParse(amount) }
}

func tainted(key string, effect v1.TaintEffect) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: effect}) }
}

func cordoned(n *v1.Node) { n.Spec.Unschedulable = true }

func labelled(key, value string) func(*v1.Node) {
	return func(n *v1.Node) { n.Labels[key] = value }
}

// aPod has one container that asks for nothing, but for what the changes say.
func aPod(name string, changes ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers:    []v1.Container{{Name: "app", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func requests(resourceName v1.ResourceName, amount string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests[resourceName] = resource.MustParse(amount)
	}
}

func on(node string) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.NodeName = node } }

func ownedBy(uid string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(uid), Controller: &yes}}
	}
}

func hostPorted(address string, port int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
			v1.ContainerPort{HostIP: address, HostPort: port, ContainerPort: port, Protocol: v1.ProtocolTCP})
	}
}

func selecting(key, value string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

func tolerating(t v1.Toleration) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

func requiring(terms ...v1.NodeSelectorTerm) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: terms}}}
	}
}

func preferring(weight int32, key, value string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
				Weight: weight, Preference: labelTerm(key, value)}}}}
	}
}

func labelTerm(key, value string) v1.NodeSelectorTerm {
	return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{
		{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}}
}

func nameTerm(names ...string) v1.NodeSelectorTerm {
	term := v1.NodeSelectorTerm{}
	for _, n := range names {
		term.MatchFields = append(term.MatchFields, v1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{n}})
	}
	return term
}

// world is a cluster in the making.
type world struct {
	nodes []*v1.Node
	pods  []*v1.Pod
}

func (w world) cluster() *Cluster {
	c := NewCluster()
	for _, n := range w.nodes {
		c.SetNode(n)
	}
	for _, p := range w.pods {
		c.SetPod(p)
	}
	return c
}

func nodesNamed(count int, changes ...func(*v1.Node)) []*v1.Node {
	nodes := make([]*v1.Node, 0, count)
	for i := range count {
		nodes = append(nodes, aNode(fmt.Sprintf("node-%d", i), changes...))
	}
	return nodes
}

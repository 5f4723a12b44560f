package scheduler

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"
)

// refreshDelay gathers changes of nodes that follow one another closely before
// the waiting Pods' messages are brought up to date. Pods that can run now do
// not wait for it.
const refreshDelay = time.Second

func (s *Scheduler) podHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.podSeen(nil, obj.(*v1.Pod)) },
		UpdateFunc: func(old, obj any) {
			before, pod := old.(*v1.Pod), obj.(*v1.Pod)
			if before.UID != pod.UID {
				s.podGone(before)
				before = nil
			}
			s.podSeen(before, pod)
		},
		DeleteFunc: func(obj any) {
			if pod, ok := lastSeen(obj).(*v1.Pod); ok {
				s.podGone(pod)
			}
		},
	}
}

func (s *Scheduler) nodeHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.nodeSeen(obj.(*v1.Node)) },
		UpdateFunc: func(old, obj any) {
			if matters(old.(*v1.Node), obj.(*v1.Node)) {
				s.nodeSeen(obj.(*v1.Node))
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := lastSeen(obj).(*v1.Node); ok {
				s.nodeGone(node.Name)
			}
		},
	}
}

// lastSeen unwraps a deletion that was noticed late.
func lastSeen(obj any) any {
	if late, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return late.Obj
	}
	return obj
}

func keyOf(pod *v1.Pod) string { return cache.MetaObjectToName(pod).String() }

func (s *Scheduler) podSeen(before, pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		if isOurs(pod) && (before == nil || asksAgain(before, pod)) {
			s.again(keyOf(pod))
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.assumed, pod.UID)
	delete(s.told, pod.UID)
	old, counted := s.cluster.placementOf(pod.UID)
	version := s.cluster.version
	s.cluster.SetPod(pod)
	s.leave(keyOf(pod))
	if counted && s.cluster.version != version {
		s.tryOn(old.node)
	}
}

func (s *Scheduler) podGone(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.assumed, pod.UID)
	delete(s.told, pod.UID)
	s.leave(keyOf(pod))
	if node := s.cluster.RemovePod(pod.UID); node != "" {
		s.tryOn(node)
	}
}

func (s *Scheduler) nodeSeen(node *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster.SetNode(node)
	s.tryOn(node.Name)
	s.refreshMessages()
}

func (s *Scheduler) nodeGone(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster.RemoveNode(name)
	s.refreshMessages()
}

// tryOn has those waiting Pods tried that fit the node now.
func (s *Scheduler) tryOn(node string) {
	for _, key := range s.waiting.roomOn(s.cluster, node) {
		s.again(key)
	}
}

// refreshMessages has every waiting Pod looked at again soon: what it was told
// counts nodes.
func (s *Scheduler) refreshMessages() {
	at := s.clock.Now().Add(refreshDelay)
	for _, key := range s.waiting.everyone() {
		s.later(key, at)
	}
}

// asksAgain says whether an unassigned Pod changed in a way that can change its
// plan. Status does not: our own conditions come back here.
func asksAgain(before, pod *v1.Pod) bool {
	return !equality.Semantic.DeepEqual(before.Spec, pod.Spec) || isOver(before) != isOver(pod)
}

// matters says whether a node changed in a way that can change a plan; its
// heartbeats do not.
func matters(before, node *v1.Node) bool {
	return before.Spec.Unschedulable != node.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(before.Labels, node.Labels) ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, node.Spec.Taints) ||
		!equality.Semantic.DeepEqual(before.Status.Allocatable, node.Status.Allocatable)
}

package view

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ByController is an index function: an object's key is the UID of its controller,
// or [OrphansOf] its namespace when it has none. Loops register it under a name of
// their own, since an informer takes each name once.
func ByController(obj any) ([]string, error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		return []string{string(owner.UID)}, nil
	}
	return []string{OrphansOf(o.GetNamespace())}, nil
}

// OrphansOf is the key in [ByController] of the objects of a namespace that have no
// controller. It cannot be a UID: it has a slash.
func OrphansOf(namespace string) string { return "orphans/" + namespace }

// ByNode is an index function: a Pod's key is the name of its node. A Pod without
// a node, and what is no Pod, has none.
func ByNode(obj any) ([]string, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil
	}
	return []string{pod.Spec.NodeName}, nil
}

package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// observe reads the namespace and its contents live: a cache that is behind must
// not make it look empty.
func (c *controller) observe(ctx context.Context, name string) (Observed, error) {
	n, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Observed{}, nil
	}
	if err != nil {
		return Observed{}, fmt.Errorf("read namespace %s: %w", name, err)
	}
	o := Observed{Namespace: n}
	if n.DeletionTimestamp == nil || len(n.Spec.Finalizers) == 0 {
		return o, nil
	}
	o.Deleted = c.deletions.Anchor(string(n.UID), n.DeletionTimestamp.Time, c.clock.Now())
	memory := c.memoryOf(n.UID)
	lists, err := c.discovery.ServerPreferredNamespacedResourcesWithContext(ctx)
	o.DiscoveryFailure = discoveryFailure(err)
	kinds, err := deletable(lists)
	if err != nil {
		o.VersionFailure = err.Error()
	}
	for _, kind := range kinds {
		c.observeContent(ctx, name, &kind)
		kind.Attempts = memory.attempts[kind.Resource]
		if kind.Failure == "" && (len(kind.Items) > 0 || !kind.Listed) {
			kind.Failure = memory.failures[kind.Resource]
		}
		o.Contents = append(o.Contents, kind)
		if kind.Resource == podsResource && (len(kind.Items) > 0 || kind.Failure != "") {
			break // nothing else is looked at while Pods are there
		}
	}
	return o, nil
}

// discoveryFailure is upstream's message.
func discoveryFailure(err error) string {
	var groups *discovery.ErrGroupDiscoveryFailed
	switch {
	case err == nil:
		return ""
	case errors.As(err, &groups):
		return fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(groups.Groups), err)
	default:
		return err.Error()
	}
}

// deletable are the kinds that can be deleted, Pods first.
func deletable(lists []*metav1.APIResourceList) ([]Content, error) {
	var kinds []Content
	var bad error
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			bad = err
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "delete") {
				kinds = append(kinds, Content{
					Resource: gv.WithResource(r.Name),
					Listed:   slices.Contains(r.Verbs, "list"),
					InBulk:   slices.Contains(r.Verbs, "deletecollection"),
				})
			}
		}
	}
	slices.SortFunc(kinds, podsFirst)
	return kinds, bad
}

func (c *controller) observeContent(ctx context.Context, namespace string, kind *Content) {
	if !kind.Listed {
		return
	}
	err := error(nil)
	if kind.Resource == podsResource {
		err = c.observePods(ctx, namespace, kind)
	} else {
		err = c.observeItems(ctx, namespace, kind)
	}
	switch {
	case err == nil:
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		kind.Listed = false // discovery promised more than there is
	default:
		kind.Failure = err.Error()
	}
}

func (c *controller) observePods(ctx context.Context, namespace string, kind *Content) error {
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		kind.Items = append(kind.Items, itemOf(&pod.ObjectMeta))
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil && !ended {
			kind.Grace = max(kind.Grace, time.Duration(*grace)*time.Second)
		}
	}
	return nil
}

func (c *controller) observeItems(ctx context.Context, namespace string, kind *Content) error {
	list, err := c.metadata.Resource(kind.Resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		kind.Items = append(kind.Items, itemOf(&list.Items[i].ObjectMeta))
	}
	return nil
}

func itemOf(m *metav1.ObjectMeta) Item {
	return Item{Name: m.Name, Deleting: m.DeletionTimestamp != nil, Finalizers: m.Finalizers}
}

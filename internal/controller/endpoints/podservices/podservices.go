// Package podservices finds the Services that select a Pod, without a look at all the
// others.
package podservices

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	endpointsliceutil "k8s.io/endpointslice/util"
)

// bySelector indexes Services by their namespace and one pair of their selector.
const bySelector = "endpoints/selector"

// selectorKeys is empty for a Service that selects nothing by itself. Of several pairs
// the first by name counts: a Pod that the Service selects has it.
func selectorKeys(obj any) ([]string, error) {
	service, ok := obj.(*v1.Service)
	if !ok {
		return nil, fmt.Errorf("not a Service: %T", obj)
	}
	if len(service.Spec.Selector) == 0 {
		return nil, nil
	}
	first := slices.Min(slices.Collect(maps.Keys(service.Spec.Selector)))
	return []string{pair(service.Namespace, first, service.Spec.Selector[first])}, nil
}

func pair(namespace, label, value string) string { return namespace + "/" + label + "=" + value }

// Index adds the index to the informer of Services, unless it has it. The informer must
// not have started.
func Index(services cache.SharedIndexInformer) error {
	if _, there := services.GetIndexer().GetIndexers()[bySelector]; there {
		return nil
	}
	if err := services.AddIndexers(cache.Indexers{bySelector: selectorKeys}); err != nil {
		return fmt.Errorf("index Services by selector: %w", err)
	}
	return nil
}

// selecting returns the keys of the Services that select Pods with these labels.
func selecting(services cache.Indexer, namespace string, podLabels labels.Set) map[string]bool {
	keys := map[string]bool{}
	for label, value := range podLabels {
		found, err := services.ByIndex(bySelector, pair(namespace, label, value))
		if err != nil {
			panic(fmt.Sprintf("Services are not indexed by selector: %v", err)) // Index was not called
		}
		for _, obj := range found {
			service := obj.(*v1.Service)
			if labels.Set(service.Spec.Selector).AsSelectorPreValidated().Matches(podLabels) {
				keys[cache.MetaObjectToName(service).String()] = true
			}
		}
	}
	return keys
}

// Handler wakes the Services that a Pod's event may change, before and after it.
func Handler(services cache.Indexer, wake func(key string)) cache.ResourceEventHandler {
	changed := func(old, next any) {
		// Nil where nothing changed that endpoints show.
		key := endpointsliceutil.GetPodUpdateProjectionKey(old, next)
		if key == nil {
			return
		}
		keys := selecting(services, key.Namespace, key.Labels)
		if key.OldLabels != nil {
			maps.Copy(keys, selecting(services, key.Namespace, key.OldLabels))
		}
		for key := range keys {
			wake(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(nil, obj) },
		UpdateFunc: changed,
		DeleteFunc: func(obj any) { changed(obj, nil) },
	}
}

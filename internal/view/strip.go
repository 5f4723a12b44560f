package view

import "k8s.io/apimachinery/pkg/api/meta"

// StripManagedFields is an informer transform that drops metadata.managedFields,
// which no loop reads and which is often half of an object. An update without
// them leaves the server's as they are.
func StripManagedFields(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil && object.GetManagedFields() != nil {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

// Package ownership is what all loops that own objects do alike: the patches by
// which an object is adopted and released, the meaning of the API's answers to
// them, and whom an event of an owned object concerns.
package ownership

import (
	"encoding/json"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"mend/internal/loop"
)

// AdoptPatch is a strategic merge patch that makes owner, of the given kind, the
// controller of one object at one version.
func AdoptPatch(of, owner metav1.Object, kind schema.GroupVersionKind) []byte {
	return patch(of, metav1.NewControllerRef(owner, kind))
}

// ReleasePatch is a strategic merge patch that drops the reference to owner from
// one object at one version.
func ReleasePatch(of, owner metav1.Object) []byte {
	return patch(of, map[string]any{"$patch": "delete", "uid": owner.GetUID()})
}

// patch changes one owner reference; they merge by UID. The object's own UID and
// resourceVersion are the preconditions.
func patch(of metav1.Object, reference any) []byte {
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             of.GetUID(),
		"resourceVersion": of.GetResourceVersion(),
		"ownerReferences": []any{reference},
	}})
	if err != nil {
		panic(err) // strings and booleans only
	}
	return text
}

// AfterAdopt is the error of an adoption as its loop sees it: what is gone or has
// changed is looked at again, since an object without a controller wakes nobody
// when it goes.
func AfterAdopt(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return loop.ErrStale
	}
	return err
}

// AfterRelease is the error of a release as its loop sees it. It is done, and
// nothing was written, when the object is gone or another has its name.
func AfterRelease(err error) (gone bool, _ error) {
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		return true, nil
	case apierrors.IsConflict(err):
		return false, loop.ErrStale
	}
	return false, err
}

// StillOwns is nil when fresh, read past the cache, is the object that the cache
// shows and is not being deleted. Otherwise nothing may be adopted for it.
func StillOwns(cached, fresh metav1.Object) error {
	if fresh.GetUID() != cached.GetUID() || fresh.GetDeletionTimestamp() != nil {
		return loop.ErrStale
	}
	return nil
}

// Waker tells the owners of one kind about events of what they own.
type Waker struct {
	Kind schema.GroupVersionKind
	// Wake takes the owner's key.
	Wake func(key string)
	// Selecting wakes those whose selector matches an object without a controller.
	Selecting func(object metav1.Object)
}

// Handler is the informer handler of the owned kind.
func (w Waker) Handler() cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.changed(nil, obj.(metav1.Object)) },
		UpdateFunc: func(old, obj any) { w.changed(old.(metav1.Object), obj.(metav1.Object)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if object, ok := obj.(metav1.Object); ok {
				w.Owner(object)
			}
		},
	}
}

// changed wakes everybody whom a change concerns; was is nil for a new object.
func (w Waker) changed(was, is metav1.Object) {
	if was != nil {
		if was.GetResourceVersion() == is.GetResourceVersion() {
			return // a resync, not a change
		}
		w.Owner(was)
	}
	if metav1.GetControllerOfNoCopy(is) != nil {
		w.Owner(is)
		return
	}
	if was == nil || !reflect.DeepEqual(was.GetLabels(), is.GetLabels()) || metav1.GetControllerOfNoCopy(was) != nil {
		w.Selecting(is)
	}
}

// Owner wakes the object's controller, if it is of the kind.
func (w Waker) Owner(object metav1.Object) {
	owner := metav1.GetControllerOfNoCopy(object)
	if owner != nil && owner.Kind == w.Kind.Kind && owner.APIVersion == w.Kind.GroupVersion().String() {
		w.Wake(object.GetNamespace() + "/" + owner.Name)
	}
}

package apiserver

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerrors "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/kubernetes/pkg/apis/core"
)

// podREST is the storage of Pods. A Pod that is deleted without grace, or has had it, and
// that no finalizer holds, is gone with one commit. The generic registry makes two of it,
// and two events for each watch: a last version of the Pod that says so, and its end.
type podREST struct{ *resource }

// errNotAtOnce says that the Pod has changed since it was looked at.
var errNotAtOnce = errors.New("the Pod cannot be deleted in one step")

// Delete implements rest.GracefulDeleter.
func (r *podREST) Delete(ctx context.Context, name string, admit rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if known, err := r.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"}); err == nil && endsAtOnce(known.(*core.Pod), options) {
		gone, err := r.deleteAtOnce(ctx, name, admit, options)
		if !errors.Is(err, errNotAtOnce) {
			return gone, err == nil, err
		}
	}
	return r.resource.Delete(ctx, name, admit, options)
}

// endsAtOnce says whether the generic registry would mark p as deleted and, without
// waiting for anybody, delete it. Whatever it has to refuse or to say else is left to it.
func endsAtOnce(p *core.Pod, options *metav1.DeleteOptions) bool {
	if options == nil || len(options.DryRun) > 0 || len(p.Finalizers) > 0 || keepsDependents(options) {
		return false
	}
	if want := options.Preconditions; want != nil {
		if want.UID != nil && *want.UID != p.UID || want.ResourceVersion != nil && *want.ResourceVersion != p.ResourceVersion {
			return false
		}
	}
	if p.DeletionTimestamp != nil {
		return options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0
	}
	return podGracePeriod(p, options.GracePeriodSeconds) == 0
}

// keepsDependents says whether the garbage collector is to have its finalizer first.
func keepsDependents(options *metav1.DeleteOptions) bool {
	policy := options.PropagationPolicy
	return options.OrphanDependents != nil || policy != nil && *policy != metav1.DeletePropagationBackground
}

// deleteAtOnce deletes what the Pod is when it is deleted, if that may be, and otherwise
// nothing. The answer is what the generic registry's would be.
func (r *podREST) deleteAtOnce(ctx context.Context, name string, admit rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := r.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	check := func(ctx context.Context, obj runtime.Object) error {
		if !endsAtOnce(obj.(*core.Pod), options) {
			return errNotAtOnce
		}
		return admit(ctx, obj)
	}
	gone := &core.Pod{}
	err = r.Storage.Delete(ctx, key, gone, nil, check, false, nil, storage.DeleteOptions{})
	switch {
	case errors.Is(err, errNotAtOnce):
		return nil, err
	case err != nil:
		return nil, storageerrors.InterpretDeleteError(err, r.kind.resource(), name)
	}
	if gone.DeletionTimestamp == nil && gone.Generation > 0 {
		gone.Generation++
	}
	now := metav1.Now()
	gone.DeletionTimestamp, gone.DeletionGracePeriodSeconds = &now, new(int64)
	return gone, nil
}

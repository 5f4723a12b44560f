package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
)

// podStorage is what the handlers of Pods write to, and what they do before.
type podStorage struct {
	pods    *podREST
	status  *resettingSubresource
	binding *bindingREST
	admit   admission.MutationInterface
	// The two keep the managed fields of Pods and of their status.
	fields, statusFields *managedfields.FieldManager
}

// podWriter writes Pods for one user of this process, see [Server.Client]. A write does
// what its handler in k8s.io/apiserver/pkg/endpoints/handlers does, in the caller's
// goroutine: its identity is authorized; defaults, namespace, managed fields, admission and
// the generic registry have their turn; it is counted; and it is waited for when the server
// ends. Errors are those that a client decodes, *apierrors.StatusError.
type podWriter struct {
	server  *Server
	storage *podStorage
	manager string // of fields
	who     user.Info
	quiet   bool // does not count as writing
}

func (s *Server) newPodWriter(config *clientrest.Config) *podWriter {
	through := config.Transport.(*transport)
	manager, _, _ := strings.Cut(config.UserAgent, "/")
	who := &user.DefaultInfo{Name: through.who.GetName(), Groups: append(slices.Clone(through.who.GetGroups()), user.AllAuthenticated)}
	return &podWriter{server: s, storage: s.pods, manager: manager, who: who, quiet: through.writing == nil}
}

// podWrite is one kind of write, as requests of it are told apart.
type podWrite struct {
	verb        string // of authorization
	method      string
	subresource string
	success     int // status code
}

var (
	podCreate = podWrite{verb: "create", method: http.MethodPost, success: http.StatusCreated}
	podStatus = podWrite{verb: "update", method: http.MethodPut, subresource: "status", success: http.StatusOK}
	podDelete = podWrite{verb: "delete", method: http.MethodDelete, success: http.StatusOK}
	podBind   = podWrite{verb: "create", method: http.MethodPost, subresource: "binding", success: http.StatusCreated}
)

var (
	podKind      = corev1.SchemeGroupVersion.WithKind("Pod")
	podsResource = corev1.SchemeGroupVersion.WithResource("pods")
)

// podWriteLimit is how long the handlers let a write take.
const podWriteLimit = 34 * time.Second

func (w *podWriter) create(ctx context.Context, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	var made runtime.Object
	err := w.do(ctx, podCreate, namespace, "", func(ctx context.Context) error {
		own, err := w.own(namespace, pod)
		if err != nil {
			return err
		}
		rest.WipeObjectMetaSystemFields(own)
		nothing := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		obj := w.storage.fields.UpdateNoErrors(nothing, own, w.manager)
		options := &metav1.CreateOptions{}
		attributes := admission.NewAttributesRecord(obj, nil, podKind, namespace, pod.Name, podsResource, "", admission.Create, options, false, w.who)
		if err := w.storage.admit.Admit(ctx, attributes, nil); err != nil {
			return err
		}
		made, err = w.storage.pods.Create(ctx, obj, rest.ValidateAllObjectFunc, options)
		return err
	})
	return w.answer(made, err)
}

func (w *podWriter) updateStatus(ctx context.Context, namespace string, pod *corev1.Pod) (*corev1.Pod, error) {
	var changed runtime.Object
	err := w.do(ctx, podStatus, namespace, pod.Name, func(ctx context.Context) error {
		own, err := w.own(namespace, pod)
		if err != nil {
			return err
		}
		manage := func(_ context.Context, changed, live runtime.Object) (runtime.Object, error) {
			return w.storage.statusFields.UpdateNoErrors(live, changed, w.manager), nil
		}
		changed, _, err = w.storage.status.Update(ctx, pod.Name, rest.DefaultUpdatedObjectInfo(own, manage),
			rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	})
	return w.answer(changed, err)
}

func (w *podWriter) remove(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return w.do(ctx, podDelete, namespace, name, func(ctx context.Context) error {
		_, _, err := w.storage.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, options.DeepCopy())
		return err
	})
}

func (w *podWriter) bind(ctx context.Context, namespace string, binding *corev1.Binding) error {
	return w.do(ctx, podBind, namespace, binding.Name, func(ctx context.Context) error {
		own := &core.Binding{}
		if err := legacyscheme.Scheme.Convert(binding.DeepCopy(), own, nil); err != nil {
			return err
		}
		if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(namespace, own); err != nil {
			return err
		}
		_, err := w.storage.binding.Create(ctx, binding.Name, own, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		return err
	})
}

// own is the Pod in the internal version, with defaults, sharing nothing with the caller.
func (w *podWriter) own(namespace string, pod *corev1.Pod) (*core.Pod, error) {
	pod = pod.DeepCopy()
	legacyscheme.Scheme.Default(pod)
	converted, err := legacyscheme.Scheme.UnsafeConvertToVersion(pod, core.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	own := converted.(*core.Pod)
	return own, rest.EnsureObjectNamespaceMatchesRequestNamespace(namespace, own)
}

// answer is what the generic registry decoded from the store for the caller alone.
func (w *podWriter) answer(obj runtime.Object, err error) (*corev1.Pod, error) {
	if err != nil {
		return nil, err
	}
	served, err := w.storage.pods.served(obj)
	if err != nil {
		return nil, err
	}
	return served.(*corev1.Pod), nil
}

// do makes a write of it (name is the one in the path that a request would have): who makes it, whether they may, how long it may take, and what
// becomes of its error. Only the end of caller counts, its values do not.
func (w *podWriter) do(caller context.Context, kind podWrite, namespace, name string, write func(context.Context) error) (err error) {
	if err := caller.Err(); err != nil {
		return err
	}
	waiting := w.server.generic.NonLongRunningRequestWaitGroup
	if waiting.Add(1) != nil {
		return apierrors.NewServiceUnavailable("apiserver is shutting down")
	}
	defer waiting.Done()
	if !w.quiet {
		w.server.writing.Add(1)
		defer w.server.writing.Add(-1)
	}
	ctx, cancel := context.WithTimeout(w.server.base, podWriteLimit)
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	info := &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: kind.verb, APIPrefix: "api", APIVersion: "v1",
		Namespace: namespace, Resource: "pods", Subresource: kind.subresource, Name: name}
	ctx = genericapirequest.WithUser(genericapirequest.WithNamespace(genericapirequest.WithRequestInfo(ctx, info), namespace), w.who)

	began := time.Now()
	err = w.failure(caller, ctx, w.guard(unaudited(ctx), info, write))
	kind.count(ctx, err, time.Since(began))
	return err
}

// guard calls write if the user may do it. A panic is an error, as it is of a request.
func (w *podWriter) guard(ctx context.Context, info *genericapirequest.RequestInfo, write func(context.Context) error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the API server's handler panicked: %v", cause)
		}
	}()
	asks := authorizer.AttributesRecord{User: w.who, Verb: info.Verb, Namespace: info.Namespace, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: true}
	decision, reason, err := w.server.config.Authorizer.Authorize(ctx, asks)
	switch {
	case decision == authorizer.DecisionAllow:
		return write(ctx)
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return responsewriters.ForbiddenStatusError(asks, reason)
}

// failure is the error that a client would get.
func (w *podWriter) failure(caller, ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case caller.Err() != nil:
		return caller.Err()
	case w.server.base.Err() != nil:
		return errors.New("the API server is stopping")
	case ctx.Err() != nil:
		return apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout - %s", ctx.Err()), 0)
	}
	status := responsewriters.ErrorToAPIStatus(err)
	status.TypeMeta = metav1.TypeMeta{} // as typed clients give objects
	return &apierrors.StatusError{ErrStatus: *status}
}

// count counts the write among the requests of /metrics, for which it takes one.
func (kind podWrite) count(ctx context.Context, err error, took time.Duration) {
	code := kind.success
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code = int(status.Status().Code)
	} else if err != nil {
		code = http.StatusInternalServerError
	}
	request := (&http.Request{Method: kind.method, URL: podsURL}).WithContext(ctx)
	metrics.MonitorRequest(request, kind.method, "", "v1", "pods", kind.subresource, "resource", metrics.APIServerComponent, false, "", code, 0, took)
}

var podsURL = &url.URL{Path: "/api/v1/pods"}

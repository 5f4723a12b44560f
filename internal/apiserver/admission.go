package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
)

// admissionChain is what upstream's admission plugins do that mend has:
// NamespaceLifecycle, ServiceAccount (but for the token volume), Priority (but for
// classes of one's own), RuntimeClass (which knows none) and DefaultTolerationSeconds.
type admissionChain struct {
	namespaces *resource
	accounts   *resource

	mu sync.Mutex
	// terminating holds namespaces whose deletion went through this server until
	// the watch cache must have it, by name and time of the request.
	terminating map[string]time.Time
}

func newAdmission(namespaces, accounts *resource) *admissionChain {
	return &admissionChain{namespaces: namespaces, accounts: accounts, terminating: map[string]time.Time{}}
}

// liveLookupFor is how long a namespace that was just deleted is read past the
// watch cache.
const liveLookupFor = 30 * time.Second

var podResource = schema.GroupResource{Resource: "pods"}

// Handles implements admission.Interface. For updates there is nothing to admit, but for
// what [keepAdmitted] does as a rule of Pods: the handlers decode the managed fields of all
// that was admitted, once for each status that is written.
func (a *admissionChain) Handles(op admission.Operation) bool { return op != admission.Update }

// Admit implements admission.MutationInterface.
func (a *admissionChain) Admit(ctx context.Context, attr admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := a.checkNamespace(ctx, attr); err != nil {
		return err
	}
	if attr.GetResource().GroupResource() != podResource || attr.GetSubresource() != "" || attr.GetOperation() != admission.Create {
		return nil
	}
	return a.admitNewPod(ctx, attr)
}

func (a *admissionChain) admitNewPod(ctx context.Context, attr admission.Attributes) error {
	p, ok := attr.GetObject().(*core.Pod)
	if !ok {
		return apierrors.NewBadRequest("resource was marked with kind Pod but was unable to be converted")
	}
	if err := a.defaultServiceAccount(ctx, attr, p); err != nil {
		return err
	}
	if err := setPriority(attr, p); err != nil {
		return err
	}
	if class := p.Spec.RuntimeClassName; class != nil {
		// There are no RuntimeClasses: a Pod that asks for a sandbox of its own
		// must not quietly run in the ordinary one.
		return admission.NewForbidden(attr, fmt.Errorf("pod rejected: RuntimeClass %q not found", *class))
	}
	defaultTolerations(p)
	return nil
}

// keepAdmitted puts back what a client that sends the text it once created the Pod
// from leaves out.
func keepAdmitted(p, old *core.Pod) {
	if p.Spec.Priority == nil {
		p.Spec.Priority = old.Spec.Priority
	}
	if p.Spec.PreemptionPolicy == nil {
		p.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
	}
	defaultTolerations(p)
}

// Validate implements admission.ValidationInterface.
func (a *admissionChain) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// namespaceDeleting notes that name begins to terminate.
func (a *admissionChain) namespaceDeleting(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for other, since := range a.terminating {
		if now.Sub(since) > liveLookupFor {
			delete(a.terminating, other)
		}
	}
	a.terminating[name] = now
}

func (a *admissionChain) mayBeTerminating(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	since, ok := a.terminating[name]
	return ok && time.Since(since) <= liveLookupFor
}

// immortal namespaces cannot be deleted.
var immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// checkNamespace lets nothing be created in a namespace that does not exist or
// is going away.
func (a *admissionChain) checkNamespace(ctx context.Context, attr admission.Attributes) error {
	ofNamespace := attr.GetKind().GroupKind() == schema.GroupKind{Kind: "Namespace"}
	if ofNamespace && attr.GetOperation() == admission.Delete && slices.Contains(immortal, attr.GetName()) {
		return apierrors.NewForbidden(attr.GetResource().GroupResource(), attr.GetName(), errors.New("this namespace may not be deleted"))
	}
	name := attr.GetNamespace()
	if attr.GetOperation() != admission.Create || name == "" || ofNamespace || isAccessReview(attr) {
		return nil
	}
	n, err := a.namespace(ctx, name)
	if err != nil {
		return err
	}
	if n.Status.Phase != core.NamespaceTerminating {
		return nil
	}
	err = admission.NewForbidden(attr, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", name))
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", name),
			Field:   "metadata.namespace",
		})
	}
	return err
}

// namespace is read from the watch cache, and from the store when the cache may
// be behind: it does not know the namespace, or a deletion was just asked for.
func (a *admissionChain) namespace(ctx context.Context, name string) (*core.Namespace, error) {
	if !a.mayBeTerminating(name) {
		found, err := a.namespaces.lookup(ctx, name, "0")
		if err == nil {
			return found.(*core.Namespace), nil
		}
	}
	found, err := a.namespaces.lookup(ctx, name, "")
	switch {
	case apierrors.IsNotFound(err):
		return nil, err
	case err != nil:
		return nil, apierrors.NewInternalError(err)
	}
	return found.(*core.Namespace), nil
}

func isAccessReview(attr admission.Attributes) bool {
	return attr.GetResource().GroupResource() == schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}
}

// defaultServiceAccount names the namespace's account. Only an account that was
// asked for by name must exist: "default" comes moments after its namespace.
func (a *admissionChain) defaultServiceAccount(ctx context.Context, attr admission.Attributes, p *core.Pod) error {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil
	}
	const fallback = "default"
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount = fallback, fallback
	}
	name := p.Spec.ServiceAccountName
	found, err := a.accounts.lookup(ctx, name, "0")
	if apierrors.IsNotFound(err) && name != fallback {
		found, err = a.accounts.lookup(ctx, name, "")
	}
	switch {
	case apierrors.IsNotFound(err) && name == fallback:
		return nil
	case apierrors.IsNotFound(err):
		err = apierrors.NewNotFound(core.Resource("serviceaccount"), name)
		fallthrough
	case err != nil:
		return admission.NewForbidden(attr, fmt.Errorf("error looking up service account %s/%s: %w", attr.GetNamespace(), name, err))
	}
	if len(p.Spec.ImagePullSecrets) == 0 {
		for _, secret := range found.(*core.ServiceAccount).ImagePullSecrets {
			p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, core.LocalObjectReference{Name: secret.Name})
		}
	}
	return nil
}

// systemPriorities are the classes that exist without anybody creating them.
var systemPriorities = map[string]int32{
	"":                        0,
	"system-cluster-critical": 2000000000,
	"system-node-critical":    2000001000,
}

// setPriority computes the number from the class; a number of one's own must be
// the same.
func setPriority(attr admission.Attributes, p *core.Pod) error {
	priority, ok := systemPriorities[p.Spec.PriorityClassName]
	if !ok {
		return admission.NewForbidden(attr, fmt.Errorf("no PriorityClass with name %v was found", p.Spec.PriorityClassName))
	}
	if p.Spec.Priority != nil && *p.Spec.Priority != priority {
		return admission.NewForbidden(attr, fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *p.Spec.Priority, priority))
	}
	policy := core.PreemptLowerPriority
	if p.Spec.PreemptionPolicy != nil && *p.Spec.PreemptionPolicy != policy {
		return admission.NewForbidden(attr, fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *p.Spec.PreemptionPolicy, policy))
	}
	p.Spec.Priority, p.Spec.PreemptionPolicy = &priority, &policy
	return nil
}

// defaultTolerations lets a Pod stay for five minutes on a node that is not
// ready or not reachable, unless it says something about that itself.
func defaultTolerations(p *core.Pod) {
	const seconds = 300
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		says := slices.ContainsFunc(p.Spec.Tolerations, func(t core.Toleration) bool {
			return (t.Key == taint || t.Key == "") && (t.Effect == core.TaintEffectNoExecute || t.Effect == "")
		})
		if !says {
			limit := int64(seconds)
			p.Spec.Tolerations = append(p.Spec.Tolerations, core.Toleration{
				Key: taint, Operator: core.TolerationOpExists, Effect: core.TaintEffectNoExecute, TolerationSeconds: &limit,
			})
		}
	}
}

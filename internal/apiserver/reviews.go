package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authorization"
	authorizationvalidation "k8s.io/kubernetes/pkg/apis/authorization/validation"
)

// review is a resource that is answered, never stored.
type review struct {
	name       string // singular
	namespaced bool
	new        func() runtime.Object
	answer     func(ctx context.Context, who user.Info, obj runtime.Object) (runtime.Object, error)
}

func (r *review) NamespaceScoped() bool   { return r.namespaced }
func (r *review) GetSingularName() string { return r.name }
func (r *review) New() runtime.Object     { return r.new() }

// Destroy has nothing to release.
func (r *review) Destroy() {}

// Create answers the review.
func (r *review) Create(ctx context.Context, obj runtime.Object, admit rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	who, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if admit != nil {
		if err := admit(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	return r.answer(ctx, who, obj)
}

// reviews are the reviews that are served, by group version and plural.
func reviews(authz authorizer.Authorizer) map[schema.GroupVersion]map[string]*review {
	return map[schema.GroupVersion]map[string]*review{
		{Group: "authentication.k8s.io", Version: "v1"}: {
			"selfsubjectreviews": {name: "selfsubjectreview", new: func() runtime.Object { return &authentication.SelfSubjectReview{} }, answer: whoAmI},
			"tokenreviews":       {name: "tokenreview", new: func() runtime.Object { return &authentication.TokenReview{} }, answer: reviewToken},
		},
		{Group: "authorization.k8s.io", Version: "v1"}: {
			"selfsubjectaccessreviews": {
				name: "selfsubjectaccessreview", new: func() runtime.Object { return &authorization.SelfSubjectAccessReview{} },
				answer: func(ctx context.Context, who user.Info, obj runtime.Object) (runtime.Object, error) {
					r := obj.(*authorization.SelfSubjectAccessReview)
					if errs := authorizationvalidation.ValidateSelfSubjectAccessReviewCreate(ctx, legacyscheme.Scheme, r); len(errs) > 0 {
						return nil, apierrors.NewInvalid(authorization.Kind(r.Kind), "", errs)
					}
					r.Status = decide(ctx, authz, who, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
					return r, nil
				},
			},
			"selfsubjectrulesreviews": {
				name: "selfsubjectrulesreview", new: func() runtime.Object { return &authorization.SelfSubjectRulesReview{} },
				answer: func(ctx context.Context, who user.Info, obj runtime.Object) (runtime.Object, error) {
					return listRules(ctx, authz, who, obj.(*authorization.SelfSubjectRulesReview))
				},
			},
			"subjectaccessreviews": {
				name: "subjectaccessreview", new: func() runtime.Object { return &authorization.SubjectAccessReview{} },
				answer: func(ctx context.Context, _ user.Info, obj runtime.Object) (runtime.Object, error) {
					r := obj.(*authorization.SubjectAccessReview)
					if errs := authorizationvalidation.ValidateSubjectAccessReviewCreate(ctx, legacyscheme.Scheme, r); len(errs) > 0 {
						return nil, apierrors.NewInvalid(authorization.Kind(r.Kind), "", errs)
					}
					r.Status = decide(ctx, authz, subject(r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
					return r, nil
				},
			},
			"localsubjectaccessreviews": {
				name: "localsubjectaccessreview", namespaced: true, new: func() runtime.Object { return &authorization.LocalSubjectAccessReview{} },
				answer: func(ctx context.Context, _ user.Info, obj runtime.Object) (runtime.Object, error) {
					r := obj.(*authorization.LocalSubjectAccessReview)
					if errs := authorizationvalidation.ValidateLocalSubjectAccessReviewCreate(ctx, legacyscheme.Scheme, r); len(errs) > 0 {
						return nil, apierrors.NewInvalid(authorization.Kind(r.Kind), "", errs)
					}
					if namespace := genericapirequest.NamespaceValue(ctx); r.Spec.ResourceAttributes.Namespace != namespace {
						return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", namespace))
					}
					r.Status = decide(ctx, authz, subject(r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
					return r, nil
				},
			},
		},
	}
}

func whoAmI(_ context.Context, who user.Info, _ runtime.Object) (runtime.Object, error) {
	answer := &authentication.SelfSubjectReview{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now())}}
	answer.Status.UserInfo = authentication.UserInfo{
		Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authentication.ExtraValue{},
	}
	for key, values := range who.GetExtra() {
		answer.Status.UserInfo.Extra[key] = values
	}
	return answer, nil
}

// reviewToken knows no tokens yet: none is authenticated.
func reviewToken(_ context.Context, _ user.Info, obj runtime.Object) (runtime.Object, error) {
	r := obj.(*authentication.TokenReview)
	if r.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	r.Status = authentication.TokenReviewStatus{}
	return r, nil
}

// listRules says what who may do in a namespace, as far as the authorizer knows.
func listRules(ctx context.Context, authz authorizer.Authorizer, who user.Info, r *authorization.SelfSubjectRulesReview) (runtime.Object, error) {
	if r.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	answer := &authorization.SelfSubjectRulesReview{}
	resolver, ok := authz.(authorizer.RuleResolver)
	if !ok {
		answer.Status = authorization.SubjectRulesReviewStatus{Incomplete: true, EvaluationError: "the authorizer cannot list rules"}
		return answer, nil
	}
	resources, others, incomplete, err := resolver.RulesFor(ctx, who, r.Spec.Namespace)
	for _, rule := range resources {
		answer.Status.ResourceRules = append(answer.Status.ResourceRules, authorization.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range others {
		answer.Status.NonResourceRules = append(answer.Status.NonResourceRules, authorization.NonResourceRule{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	answer.Status.Incomplete = incomplete
	if err != nil {
		answer.Status.EvaluationError = err.Error()
	}
	return answer, nil
}

func subject(spec authorization.SubjectAccessReviewSpec) user.Info {
	extra := map[string][]string{}
	for key, values := range spec.Extra {
		extra[key] = values
	}
	return &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: extra}
}

func decide(ctx context.Context, authz authorizer.Authorizer, who user.Info, about *authorization.ResourceAttributes, path *authorization.NonResourceAttributes) authorization.SubjectAccessReviewStatus {
	record := authorizer.AttributesRecord{User: who}
	if about == nil {
		record.Path, record.Verb = path.Path, path.Verb
	} else {
		record = resourceRecord(who, about)
	}
	decision, reason, err := authz.Authorize(ctx, record)
	var problems []string
	if err != nil {
		problems = append(problems, err.Error())
	}
	if reqs, err := record.GetFieldSelector(); err != nil {
		problems = append(problems, selectorProblem("fieldSelector", len(reqs)))
	}
	if reqs, err := record.GetLabelSelector(); err != nil {
		problems = append(problems, selectorProblem("labelSelector", len(reqs)))
	}
	return authorization.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow, Denied: decision == authorizer.DecisionDeny,
		Reason: reason, EvaluationError: strings.Join(problems, "; "),
	}
}

func selectorProblem(name string, kept int) string {
	if kept > 0 {
		return "spec.resourceAttributes." + name + " partially ignored due to parse error"
	}
	return "spec.resourceAttributes." + name + " ignored due to parse error"
}

func resourceRecord(who user.Info, about *authorization.ResourceAttributes) authorizer.AttributesRecord {
	record := authorizer.AttributesRecord{
		User: who, Verb: about.Verb, Namespace: about.Namespace, APIGroup: about.Group, APIVersion: about.Version,
		Resource: about.Resource, Subresource: about.Subresource, Name: about.Name, ResourceRequest: true,
	}
	if record.APIVersion == "" {
		record.APIVersion = "*"
	}
	if s := about.LabelSelector; s != nil {
		if s.RawSelector != "" {
			selector, err := labels.Parse(s.RawSelector)
			if record.LabelSelectorParsingErr = err; err == nil {
				record.LabelSelectorRequirements, _ = selector.Requirements()
			}
		}
		if len(s.Requirements) > 0 {
			record.LabelSelectorRequirements, record.LabelSelectorParsingErr = labelRequirements(s.Requirements)
		}
	}
	if s := about.FieldSelector; s != nil {
		if s.RawSelector != "" {
			selector, err := fields.ParseSelector(s.RawSelector)
			if record.FieldSelectorParsingErr = err; err == nil {
				record.FieldSelectorRequirements = selector.Requirements()
			}
		}
		if len(s.Requirements) > 0 {
			record.FieldSelectorRequirements, record.FieldSelectorParsingErr = fieldRequirements(s.Requirements)
		}
	}
	return record
}

// labelRequirements keeps what can be read and reports the rest: requirements
// are ANDed, so leaving some out only asks for more.
func labelRequirements(wanted []metav1.LabelSelectorRequirement) (labels.Requirements, error) {
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var kept labels.Requirements
	var errs []error
	for _, w := range wanted {
		operator, ok := operators[w.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", w.Operator))
			continue
		}
		requirement, err := labels.NewRequirement(w.Key, operator, w.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		kept = append(kept, *requirement)
	}
	return kept, errors.Join(errs...)
}

func fieldRequirements(wanted []metav1.FieldSelectorRequirement) (fields.Requirements, error) {
	operators := map[metav1.FieldSelectorOperator]selection.Operator{
		metav1.FieldSelectorOpIn: selection.Equals, metav1.FieldSelectorOpNotIn: selection.NotEquals,
	}
	var kept fields.Requirements
	var errs []error
	for _, w := range wanted {
		operator, ok := operators[w.Operator]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("fieldSelectors do not support %v", w.Operator))
		case len(w.Values) != 1:
			errs = append(errs, errors.New("fieldSelectors must have one value"))
		default:
			kept = append(kept, fields.Requirement{Field: w.Key, Operator: operator, Value: w.Values[0]})
		}
	}
	return kept, errors.Join(errs...)
}

package apiserver

import (
	"context"
	"crypto/x509"
	"slices"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const (
	// LoopsGroup is the group of mend's own loops. Their names are
	// [LoopUserPrefix] and the loop's.
	LoopsGroup     = "system:mend:loops"
	LoopUserPrefix = "system:mend:"
)

// healthPaths is all that may be asked without saying who one is.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// newAuthenticator knows who asks over a socket: clients with a certificate of roots,
// and nobody (for health). Requests of this process take [inProcessChain].
func newAuthenticator(roots *x509.CertPool) authenticator.Request {
	var known []authenticator.Request
	if roots != nil {
		options := x509request.DefaultVerifyOptions()
		options.Roots = roots
		known = append(known, x509request.New(options, x509request.CommonNameUserConversion))
	}
	var open []apiserver.AnonymousAuthCondition
	for _, path := range healthPaths {
		open = append(open, apiserver.AnonymousAuthCondition{Path: path})
	}
	return union.New(group.NewAuthenticatedGroupAdder(union.New(known...)), anonymous.NewAuthenticator(open))
}

// DefaultAuthorizer allows everything to administrators (system:masters) and to
// mend's own loops, health and what everyone may know to whoever is known, and
// nothing else. It also says what somebody's rights are (authorizer.RuleResolver).
func DefaultAuthorizer() authorizer.Authorizer {
	return defaultAuthorizer{authorizer.AuthorizerFunc(authorize)}
}

type defaultAuthorizer struct{ authorizer.AuthorizerFunc }

func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	who := a.GetUser()
	switch {
	case who == nil:
		return authorizer.DecisionNoOpinion, "", nil
	case mayDoAnything(who):
		return authorizer.DecisionAllow, "", nil
	case !a.IsResourceRequest() && a.GetVerb() == "get" && slices.Contains(healthPaths, a.GetPath()):
		return authorizer.DecisionAllow, "", nil
	case slices.Contains(who.GetGroups(), user.AllAuthenticated) && aboutOneself(a):
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func mayDoAnything(who user.Info) bool {
	return slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) || slices.Contains(who.GetGroups(), LoopsGroup)
}

// RulesFor implements authorizer.RuleResolver.
func (defaultAuthorizer) RulesFor(_ context.Context, who user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	all := []string{"*"}
	if mayDoAnything(who) {
		return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
			[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
	}
	create, get := []string{"create"}, []string{"get"}
	return []authorizer.ResourceRuleInfo{
			&authorizer.DefaultResourceRuleInfo{Verbs: create, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews"}},
			&authorizer.DefaultResourceRuleInfo{Verbs: create, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"selfsubjectreviews"}},
		}, []authorizer.NonResourceRuleInfo{
			&authorizer.DefaultNonResourceRuleInfo{Verbs: get, NonResourceURLs: append(slices.Clone(healthPaths), "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/")},
		}, false, nil
}

// aboutOneself is what upstream's roles system:basic-user, system:discovery and
// system:public-info-viewer give to every user who is known.
func aboutOneself(a authorizer.Attributes) bool {
	if a.IsResourceRequest() {
		return a.GetVerb() == "create" &&
			(a.GetAPIGroup() == "authorization.k8s.io" && (a.GetResource() == "selfsubjectaccessreviews" || a.GetResource() == "selfsubjectrulesreviews") ||
				a.GetAPIGroup() == "authentication.k8s.io" && a.GetResource() == "selfsubjectreviews")
	}
	if a.GetVerb() != "get" {
		return false
	}
	path := a.GetPath()
	for _, open := range []string{"/api", "/apis", "/openapi"} {
		if path == open || len(path) > len(open) && path[:len(open)+1] == open+"/" {
			return true
		}
	}
	return slices.Contains([]string{"/version", "/version/"}, path)
}

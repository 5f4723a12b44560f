package kubeletapi

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// authenticated lets through who shows a verified certificate and is allowed to.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			refuse(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		subject := r.TLS.VerifiedChains[0][0].Subject
		if subject.CommonName == "" {
			refuse(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		who := &user.DefaultInfo{Name: subject.CommonName, Groups: subject.Organization}
		allowed, asked, err := s.allowed(r, who)
		switch {
		case err != nil:
			s.config.Log.Error("authorization failed", "user", who.Name, "path", r.URL.Path, "err", err)
			refuse(w, http.StatusInternalServerError, "Authorization error (user=%s, verb=%s, resource=%s, subresource=%s)",
				who.Name, asked[0].Verb, asked[0].Resource, asked[0].Subresource)
		case !allowed:
			var subresources []string
			for _, attributes := range asked {
				subresources = append(subresources, attributes.Subresource)
			}
			refuse(w, http.StatusForbidden, "Forbidden (user=%s, verb=%s, resource=%s, subresource(s)=%v)\n",
				who.Name, asked[0].Verb, asked[0].Resource, subresources)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// allowed asks for each of the rights that are enough, the narrow one first.
func (s *Server) allowed(r *http.Request, who user.Info) (bool, []authorizer.AttributesRecord, error) {
	asked := s.attributes(r, who)
	for _, attributes := range asked {
		decision, _, err := s.config.Authorizer.Authorize(r.Context(), attributes)
		if err != nil {
			return false, asked, err
		}
		if decision == authorizer.DecisionAllow {
			return true, asked, nil
		}
	}
	return false, asked, nil
}

var verbs = map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

// subresources maps the first element of a path to the rights of which one is enough;
// everything else needs nodes/proxy. It is kubelet's table.
var subresources = map[string][]string{
	"stats":       {"stats"},
	"metrics":     {"metrics"},
	"pods":        {"pods", "proxy"},
	"runningpods": {"pods", "proxy"},
	"healthz":     {"healthz", "proxy"},
}

func (s *Server) attributes(r *http.Request, who user.Info) []authorizer.AttributesRecord {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	wanted, known := subresources[first]
	if !known {
		wanted = []string{"proxy"}
	}
	asked := make([]authorizer.AttributesRecord, 0, len(wanted))
	for _, subresource := range wanted {
		asked = append(asked, authorizer.AttributesRecord{
			User:            who,
			Verb:            verbs[r.Method],
			APIVersion:      "v1",
			Resource:        "nodes",
			Subresource:     subresource,
			Name:            s.config.NodeName,
			ResourceRequest: true,
			Path:            r.URL.Path,
		})
	}
	return asked
}

func mastersOnly(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "only " + user.SystemPrivilegedGroup + " may use a node's API", nil
}

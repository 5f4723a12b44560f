package apiserver

import (
	"context"
	"net/http"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// inProcessLimit ends a request that is no watch, as --request-timeout does.
const inProcessLimit = time.Minute

// inProcessChain is what requests of this process go through: who it is, whether
// they may, and the handlers. What the full chain has beyond that is about
// connections, strangers and many of them: tracing, timeouts with a goroutine each,
// limits, impersonation, cross-origin rules.
func inProcessChain(config *genericapiserver.Config, director http.Handler) http.Handler {
	handler := genericapifilters.WithAuthorization(director, config.Authorization.Authorizer, legacyscheme.Codecs)
	handler = withIdentity(handler)
	handler = withLimit(handler, config.LongRunningFunc)
	handler = genericfilters.WithWaitGroup(handler, config.LongRunningFunc, config.NonLongRunningRequestWaitGroup)
	handler = genericapifilters.WithRequestInfo(handler, config.RequestInfoResolver)
	return genericapifilters.WithRequestReceivedTimestamp(handler)
}

// withIdentity takes the user from the context that the transport made.
func withIdentity(handler http.Handler) http.Handler {
	known := group.NewAuthenticatedGroupAdder(authenticator.RequestFunc(authenticateInProcess))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answer, ok, err := known.AuthenticateRequest(req)
		if err != nil || !ok {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		ctx := unaudited(genericapirequest.WithUser(req.Context(), answer.User))
		handler.ServeHTTP(w, req.WithContext(ctx))
	})
}

// unaudited spares the record of a request that nobody keeps; the handlers look for
// one.
func unaudited(ctx context.Context) context.Context {
	ctx = audit.WithAuditContext(ctx)
	// It fails only for a context that had a record before.
	_ = audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditapi.LevelNone}, nil)
	return ctx
}

func withLimit(handler http.Handler, isLong genericapirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(req.Context())
		if !ok || isLong(req, info) {
			handler.ServeHTTP(w, req)
			return
		}
		ctx, cancel := context.WithTimeout(req.Context(), inProcessLimit)
		defer cancel()
		handler.ServeHTTP(w, req.WithContext(ctx))
	})
}

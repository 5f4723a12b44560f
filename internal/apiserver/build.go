package apiserver

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"mend/internal/version"
)

// build makes the generic server and installs every kind in it.
func (s *Server) build() error {
	storage, admission, err := s.restStorage()
	if err != nil {
		return err
	}
	config := s.genericConfig()
	config.AdmissionControl = admission
	// The config is completed before its handler exists; the loopback client
	// finds it once there is one.
	loopback := &lateHandler{}
	config.LoopbackClientConfig = s.clientConfigOn(loopback, "apiserver")
	s.generic, err = config.Complete(nil).New("mend", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	s.inProcess = inProcessChain(config, s.generic.Handler.Director)
	loopback.Handler = s.inProcess
	if err := s.install(storage); err != nil {
		return err
	}
	if err := s.generic.AddPostStartHook("system-namespaces", s.systemNamespacesHook); err != nil {
		return err
	}
	if err := s.generic.AddPostStartHook("service-addresses", s.serviceAddressesHook); err != nil {
		return err
	}
	if err := s.generic.AddReadyzChecks(healthz.NamedCheck("running", func(*http.Request) error { return s.base.Err() })); err != nil {
		return err
	}
	s.generic.Handler.NonGoRestfulMux.HandleFunc(crdsPath, serveNoCRDs)
	s.generic.PrepareRun()
	return nil
}

type lateHandler struct{ http.Handler }

func (s *Server) genericConfig() *genericapiserver.Config {
	config := genericapiserver.NewConfig(legacyscheme.Codecs)
	config.EffectiveVersion = effectiveVersion()
	config.ExternalAddress = "127.0.0.1:6443"
	if s.config.Listen != nil {
		config.ExternalAddress = s.config.Listen.Addr().String()
	}
	var roots *x509.CertPool
	if s.config.PKI != nil {
		roots = s.config.PKI.Pool()
	}
	config.Authentication.Authenticator = newAuthenticator(roots)
	config.Authorization.Authorizer = s.config.Authorizer
	// For runaway clients: requests of this process do not pass these limits.
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = 3000, 1000
	config.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))

	namer := openapi.NewDefinitionNamer(legacyscheme.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions(), namer)
	config.OpenAPIConfig.Info.Title = "Kubernetes"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions(), namer)
	config.OpenAPIV3Config.Info.Title = "Kubernetes"

	if s.config.StoreHealth != nil {
		config.AddHealthChecks(healthz.NamedCheck("etcd", func(req *http.Request) error {
			ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
			defer cancel()
			return s.config.StoreHealth(ctx)
		}))
	}
	return config
}

// install serves the storage, one API group after the other.
func (s *Server) install(storage served) error {
	for _, gv := range groupOrder {
		resources := storage[gv]
		if len(resources) == 0 {
			continue
		}
		info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
		info.PrioritizedVersions = []schema.GroupVersion{gv}
		info.VersionedResourcesStorageMap[gv.Version] = resources
		var err error
		if gv.Group == "" {
			err = s.generic.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info)
		} else {
			err = s.generic.InstallAPIGroup(&info)
		}
		if err == nil && gv == coreV1 {
			err = s.pods.manageFields(info.StaticOpenAPISpec)
		}
		if err != nil {
			return fmt.Errorf("apiserver: %s: %w", gv, err)
		}
	}
	return nil
}

// groupOrder is the order in which groups appear in discovery.
var groupOrder = []schema.GroupVersion{
	{Group: "", Version: "v1"},
	{Group: "authentication.k8s.io", Version: "v1"},
	{Group: "authorization.k8s.io", Version: "v1"},
	{Group: "coordination.k8s.io", Version: "v1"},
	{Group: "discovery.k8s.io", Version: "v1"},
	{Group: "apps", Version: "v1"},
	{Group: "events.k8s.io", Version: "v1"},
	{Group: "networking.k8s.io", Version: "v1"},
}

// systemNamespacesHook creates the namespaces that always exist. It tries until
// it succeeds: a hook that fails ends the process, and /readyz says that this one
// is not done.
func (s *Server) systemNamespacesHook(ctx genericapiserver.PostStartHookContext) error {
	s.untilDone(ctx, "system namespaces are not there yet", s.createSystemNamespaces)
	return nil
}

// serviceAddressesHook creates the default ServiceCIDR, and the IPAddress of each
// Service that was stored without one. Until it is done no Service is written.
func (s *Server) serviceAddressesHook(ctx genericapiserver.PostStartHookContext) error {
	s.untilDone(ctx, "the addresses of Services are not known yet", s.book.load)
	return nil
}

// untilDone tries until it succeeds or the server ends.
func (s *Server) untilDone(ctx context.Context, otherwise string, try func(context.Context) error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.config.Log.Debug(otherwise, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func ensureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// stampedVersion answers /version with numbers and a version that clients can
// parse also in a build without -ldflags, where component-base has placeholders.
type stampedVersion struct{ compatibility.EffectiveVersion }

func effectiveVersion() compatibility.EffectiveVersion {
	return stampedVersion{compatibility.NewEffectiveVersionFromString(baseversion.DefaultKubeBinaryVersion, "", "")}
}

// Info implements compatibility.EffectiveVersion.
func (v stampedVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	if strings.Contains(info.GitVersion, "$Format") || strings.HasPrefix(info.GitVersion, "v0.0.0") {
		info.GitVersion = "v" + version.Kubernetes + "+mend." + version.Version
	}
	if strings.Contains(info.GitCommit, "$Format") {
		info.GitCommit = ""
	}
	return info
}

package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	discoveryconversion "k8s.io/kubernetes/pkg/apis/discovery/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// connectREST is a subresource that hands the connection on to somebody else.
type connectREST struct {
	methods []string
	options func() runtime.Object
	path    bool // the options take the rest of the request's path
	connect func(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error)
}

func (r *connectREST) New() runtime.Object { return r.options() }

// Destroy has nothing to release.
func (r *connectREST) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (r *connectREST) ConnectMethods() []string { return r.methods }

// NewConnectOptions implements rest.Connecter.
func (r *connectREST) NewConnectOptions() (runtime.Object, bool, string) {
	if r.path {
		return r.options(), true, "path"
	}
	return r.options(), false, ""
}

// Connect implements rest.Connecter.
func (r *connectREST) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	return r.connect(ctx, name, options, responder)
}

var (
	upgradeMethods = []string{"GET", "POST"}
	proxyMethods   = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
)

// streamREST is exec, attach or portForward. WebSocket clients of the current
// protocols are translated into SPDY, which is what an agent speaks.
func streamREST(k *kubelets, authz authorizer.Authorizer, path string, options func() runtime.Object) *connectREST {
	connect := func(ctx context.Context, name string, o runtime.Object, responder rest.Responder) (http.Handler, error) {
		if err := mayCreate(ctx, authz); err != nil {
			return nil, err
		}
		location, transport, err := k.streamLocation(ctx, name, path, o)
		if err != nil {
			return nil, err
		}
		handler := http.Handler(proxy.NewUpgradeAwareHandler(location, transport, false, true, proxy.NewErrorResponder(responder)))
		if path == "portForward" {
			return translator.NewTranslatingHandler(handler, translator.NewTunnelingHandler(handler), wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
		}
		streams := translator.NewStreamTranslatorHandler(location, transport, 0, streamsOf(o))
		return translator.NewTranslatingHandler(handler, streams, wsstream.IsWebSocketRequestWithStreamCloseProtocol), nil
	}
	return &connectREST{methods: upgradeMethods, options: options, connect: connect}
}

func streamsOf(options runtime.Object) translator.Options {
	switch o := options.(type) {
	case *core.PodExecOptions:
		return translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	case *core.PodAttachOptions:
		return translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	}
	return translator.Options{}
}

// mayCreate asks for the right to create also where a WebSocket client has to
// use GET: whoever may only read must not execute.
func mayCreate(ctx context.Context, authz authorizer.Authorizer) error {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("no request info in context"))
	}
	if info.Verb == "create" {
		return nil
	}
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("error building authorizer attributes: %w", err))
	}
	decision, reason, err := authz.Authorize(ctx, createVerb{attributes})
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		return apierrors.NewForbidden(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Name, errors.New(reason))
	}
	return nil
}

type createVerb struct{ authorizer.Attributes }

// GetVerb implements authorizer.Attributes.
func (createVerb) GetVerb() string { return "create" }

// proxyREST hands requests of any method to the place that find names.
func proxyREST(options func() runtime.Object, find func(ctx context.Context, id string) (*url.URL, http.RoundTripper, error)) *connectREST {
	connect := func(ctx context.Context, id string, o runtime.Object, responder rest.Responder) (http.Handler, error) {
		location, transport, err := find(ctx, id)
		if err != nil {
			return nil, err
		}
		location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, proxyPath(o))
		return proxy.NewUpgradeAwareHandler(location, transport, true, false, proxy.NewErrorResponder(responder)), nil
	}
	return &connectREST{methods: proxyMethods, options: options, path: true, connect: connect}
}

func proxyPath(options runtime.Object) string {
	switch o := options.(type) {
	case *core.PodProxyOptions:
		return o.Path
	case *core.ServiceProxyOptions:
		return o.Path
	case *core.NodeProxyOptions:
		return o.Path
	}
	return ""
}

// proxyTargets finds what pods/proxy, services/proxy and nodes/proxy mean.
type proxyTargets struct {
	kubelets  *kubelets
	services  *resource
	slices    *resource
	transport http.RoundTripper
}

// pod understands "name", "name:port" and "scheme:name:port".
func (t *proxyTargets) pod(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	p, err := t.kubelets.pod(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	for i := range p.Spec.Containers {
		if ports := p.Spec.Containers[i].Ports; port == "" && len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	if err := allowedProxyTarget(ip); err != nil {
		return nil, nil, err
	}
	location := &url.URL{Scheme: scheme, Host: ip}
	if port != "" {
		location.Host = net.JoinHostPort(ip, port)
	}
	return location, t.transport, nil
}

// service understands "name", "name:port" and "scheme:name:port", and takes one
// of the Service's ready endpoints that are Pods.
func (t *proxyTargets) service(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		found, err := t.services.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		if port, valid = portName(found.(*core.Service), int32(number)); !valid {
			return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
		}
	}
	slices, err := t.endpointSlices(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	host, err := translator.RandomEndpoint(name, slices, port, corev1.IPv4Protocol, func(e *discoveryv1.Endpoint) bool { return t.isPod(ctx, e) })
	if err != nil {
		return nil, nil, err
	}
	return &url.URL{Scheme: scheme, Host: host}, t.transport, nil
}

func portName(s *core.Service, number int32) (string, bool) {
	for _, port := range s.Spec.Ports {
		if port.Port == number {
			return port.Name, true
		}
	}
	return "", false
}

func (t *proxyTargets) endpointSlices(ctx context.Context, service string) ([]*discoveryv1.EndpointSlice, error) {
	found, err := t.slices.List(ctx, &metainternalversion.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}), ResourceVersion: "0",
	})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var slices []*discoveryv1.EndpointSlice
	for i := range found.(*discovery.EndpointSliceList).Items {
		slice := &discoveryv1.EndpointSlice{}
		if err := discoveryconversion.Convert_discovery_EndpointSlice_To_v1_EndpointSlice(&found.(*discovery.EndpointSliceList).Items[i], slice, nil); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		slices = append(slices, slice)
	}
	return slices, nil
}

// isPod says whether an endpoint is really a Pod of the namespace, and not an
// address that somebody wrote into a slice.
func (t *proxyTargets) isPod(ctx context.Context, e *discoveryv1.Endpoint) bool {
	if e.TargetRef == nil || e.TargetRef.Namespace != genericapirequest.NamespaceValue(ctx) || len(e.Addresses) == 0 {
		return false
	}
	p, err := t.kubelets.pod(ctx, e.TargetRef.Name)
	if err != nil || allowedProxyTarget(e.Addresses[0]) != nil {
		return false
	}
	for _, ip := range p.Status.PodIPs {
		if ip.IP == e.Addresses[0] {
			return true
		}
	}
	return false
}

// node understands "name", "name:port" and "scheme:name:port"; the agent itself
// is reached with the server's own credentials.
func (t *proxyTargets) node(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	base, transport, err := t.kubelets.connect(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if port == "" || port == base.Port() {
		return &url.URL{Scheme: base.Scheme, Host: base.Host}, transport, nil
	}
	if err := allowedProxyTarget(base.Hostname()); err != nil {
		return nil, nil, err
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(base.Hostname(), port)}, t.transport, nil
}

func insecureTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
}

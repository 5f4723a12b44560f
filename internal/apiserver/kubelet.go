package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/ptr"
)

// KubeletConnector reaches the HTTP API of a node's agent. It is called once per
// request and must not block for longer than the request's context lasts.
type KubeletConnector interface {
	// Connect returns the agent's base URL (scheme, host and port) and a
	// transport that authenticates to it. Upgraded connections (exec, attach,
	// port-forward) take the TLS configuration and dialer out of the transport,
	// so it must be an *http.Transport or unwrap to one. The error says why the
	// node cannot be reached.
	Connect(ctx context.Context, nodeName string) (*url.URL, http.RoundTripper, error)
}

// kubelets finds the agent behind a Pod or node.
type kubelets struct {
	connector KubeletConnector
	pods      *resource
	nodes     *resource
}

// connect reaches the agent of a node that exists.
func (k *kubelets) connect(ctx context.Context, nodeName string) (*url.URL, http.RoundTripper, error) {
	if _, err := k.nodes.lookup(ctx, nodeName, ""); err != nil {
		return nil, nil, err
	}
	if k.connector == nil {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %s has no agent that this server can reach", nodeName))
	}
	base, transport, err := k.connector.Connect(ctx, nodeName)
	if status := (apierrors.APIStatus)(nil); err != nil && !errors.As(err, &status) {
		err = apierrors.NewServiceUnavailable(fmt.Sprintf("node %s cannot be reached: %v", nodeName, err))
	}
	return base, transport, err
}

func (k *kubelets) pod(ctx context.Context, name string) (*core.Pod, error) {
	found, err := k.pods.lookup(ctx, name, "")
	if err != nil {
		return nil, err
	}
	return found.(*core.Pod), nil
}

// locate is the URL of one of a Pod's streams at its node's agent.
func (k *kubelets) locate(ctx context.Context, p *core.Pod, path string, query url.Values) (*url.URL, http.RoundTripper, error) {
	base, transport, err := k.connect(ctx, p.Spec.NodeName)
	if err != nil {
		return nil, nil, err
	}
	return &url.URL{Scheme: base.Scheme, Host: base.Host, Path: path, RawQuery: query.Encode()}, transport, nil
}

// streamLocation is where exec, attach or portForward of a Pod is served.
func (k *kubelets) streamLocation(ctx context.Context, name, path string, options runtime.Object) (*url.URL, http.RoundTripper, error) {
	p, err := k.pod(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	container, query := streamQuery(options)
	path = fmt.Sprintf("/%s/%s/%s", path, p.Namespace, p.Name)
	if _, forward := options.(*core.PodPortForwardOptions); !forward {
		if container, err = chooseContainer(p, container); err != nil {
			return nil, nil, err
		}
		path += "/" + container
	}
	if p.Spec.NodeName == "" {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	return k.locate(ctx, p, path, query)
}

// streamQuery says the request's options in the kubelet's words.
func streamQuery(options runtime.Object) (container string, query url.Values) {
	query = url.Values{}
	set := func(on bool, name string) {
		if on {
			query.Set(name, "1")
		}
	}
	switch o := options.(type) {
	case *core.PodExecOptions:
		set(o.Stdin, core.ExecStdinParam)
		set(o.Stdout, core.ExecStdoutParam)
		set(o.Stderr, core.ExecStderrParam)
		set(o.TTY, core.ExecTTYParam)
		query["command"] = o.Command
		return o.Container, query
	case *core.PodAttachOptions:
		set(o.Stdin, core.ExecStdinParam)
		set(o.Stdout, core.ExecStdoutParam)
		set(o.Stderr, core.ExecStderrParam)
		set(o.TTY, core.ExecTTYParam)
		return o.Container, query
	case *core.PodPortForwardOptions:
		var ports []string
		for _, port := range o.Ports {
			ports = append(ports, strconv.Itoa(int(port)))
		}
		if len(ports) > 0 {
			query.Set(core.PortHeader, strings.Join(ports, ","))
		}
	}
	return "", query
}

// chooseContainer checks the name that was asked for, or takes the only one.
func chooseContainer(p *core.Pod, asked string) (string, error) {
	var names []string
	pod.VisitContainers(&p.Spec, pod.AllFeatureEnabledContainers(), func(c *core.Container, _ pod.ContainerType) bool {
		names = append(names, c.Name)
		return true
	})
	switch {
	case asked != "":
		for _, name := range names {
			if name == asked {
				return asked, nil
			}
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", asked, p.Name))
	case len(p.Spec.Containers) == 1:
		return p.Spec.Containers[0].Name, nil
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", p.Name, names))
}

// logREST streams a container's log from its node's agent.
type logREST struct {
	kubelets *kubelets
}

func (r *logREST) New() runtime.Object { return &core.Pod{} }

// Destroy leaves the storage to the Pods.
func (r *logREST) Destroy() {}

// ProducesMIMETypes adds plain text to what is said about the endpoint.
func (r *logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject says that the answer is a string.
func (r *logREST) ProducesObject(string) any { return "" }

// NewGetOptions implements rest.GetterWithOptions.
func (r *logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &core.PodLogOptions{}, false, ""
}

// OverrideMetricsVerb counts a log as a connection: it lasts.
func (r *logREST) OverrideMetricsVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

// Get implements rest.GetterWithOptions.
func (r *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*core.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	split := enabled(features.PodLogsQuerySplitStreams)
	if split && o.Stream == nil {
		o.Stream = ptr.To(core.LogStreamAll)
	}
	if errs := validation.ValidatePodLogOptions(o, split); len(errs) > 0 {
		return nil, apierrors.NewInvalid(core.Kind("PodLogOptions"), name, errs)
	}
	p, err := r.kubelets.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	container, err := chooseContainer(p, o.Container)
	if err != nil {
		return nil, err
	}
	streamer := &genericrest.LocationStreamer{
		ContentType:     "text/plain",
		Flush:           o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(core.Resource("pods/log"), name),
		RedirectChecker: genericrest.PreventRedirects,
	}
	if p.Spec.NodeName == "" {
		return streamer, nil // nothing to show yet
	}
	streamer.Location, streamer.Transport, err = r.kubelets.locate(ctx, p,
		fmt.Sprintf("/containerLogs/%s/%s/%s", p.Namespace, p.Name, container), logQuery(o))
	return streamer, err
}

func logQuery(o *core.PodLogOptions) url.Values {
	query := url.Values{}
	flag := func(on bool, name string) {
		if on {
			query.Set(name, "true")
		}
	}
	number := func(n *int64, name string) {
		if n != nil {
			query.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	flag(o.Follow, "follow")
	flag(o.Previous, "previous")
	flag(o.Timestamps, "timestamps")
	number(o.SinceSeconds, "sinceSeconds")
	number(o.TailLines, "tailLines")
	number(o.LimitBytes, "limitBytes")
	if o.SinceTime != nil {
		query.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.Stream != nil && enabled(features.PodLogsQuerySplitStreams) {
		query.Set("stream", string(*o.Stream))
	}
	return query
}

// proxyTransport reaches Pods. Nobody vouches for their certificates.
func proxyTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:     insecureTLS(),
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     90 * time.Second,
	}
}

// allowedProxyTarget refuses addresses through which a client could reach this
// machine's own services instead of a Pod.
func allowedProxyTarget(host string) error {
	if ip := net.ParseIP(host); ip == nil || !ip.IsGlobalUnicast() {
		return apierrors.NewBadRequest("address not allowed")
	}
	return nil
}

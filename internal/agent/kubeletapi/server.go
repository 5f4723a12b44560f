package kubeletapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-base/metrics/legacyregistry"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // PodList and PodLogOptions
	"k8s.io/utils/clock"

	"mend/internal/agent/logs"
)

// PodSource is what the agent knows of its Pods. Its methods are called from many
// goroutines and must not block. Pods are not changed by the receiver.
type PodSource interface {
	// PodByName returns a Pod of this node, with its status as the agent last
	// generated it.
	PodByName(namespace, name string) (*v1.Pod, bool)
	// ContainerID returns the newest container of that name, dead or alive, or with
	// previous the last one that has ended before it. LogPath may be empty.
	ContainerID(podUID types.UID, container string, previous bool) (id, logPath string, ok bool)
	// SandboxID returns the Pod's sandbox, if one is ready.
	SandboxID(podUID types.UID) (string, bool)
	// Pods returns all Pods of this node.
	Pods() []*v1.Pod
}

// EndWatcher is a PodSource that also knows when a container ends. With it,
// `kubectl logs -f` ends at once instead of at the reader's next check.
type EndWatcher interface {
	// Ended is closed when the container has ended; nil if that is not known.
	Ended(containerID string) <-chan struct{}
}

// Config configures a [Server]. NodeName, Pods, Runtime and TLS are required.
type Config struct {
	NodeName string
	Pods     PodSource
	Runtime  internalapi.RuntimeService
	// Images is asked for the size of the image store; may be nil.
	Images internalapi.ImageManagerService
	// TLS must require and verify a client's certificate.
	TLS *tls.Config
	// Authorizer decides about every request. Default: members of
	// system:masters only.
	Authorizer authorizer.UnconditionalAuthorizer
	// Healthy says what ails the agent; nil: nothing.
	Healthy func() error
	Clock   clock.WithTicker // default the real clock
	Log     *slog.Logger     // default slog.Default()
}

// Server is the API as an http.Handler. It trusts nothing but a verified
// certificate: without TLS it answers 401.
type Server struct {
	config  Config
	handler http.Handler
	reader  *logs.Reader
	usage   *usage
}

// New returns an error if the configuration would let strangers in.
func New(config Config) (*Server, error) {
	if config.NodeName == "" || config.Pods == nil || config.Runtime == nil {
		return nil, errors.New("kubelet API: NodeName, Pods and Runtime are required")
	}
	if config.TLS == nil || config.TLS.ClientAuth != tls.RequireAndVerifyClientCert || config.TLS.ClientCAs == nil {
		return nil, errors.New("kubelet API: TLS must require and verify client certificates of a known authority")
	}
	if config.Authorizer == nil {
		config.Authorizer = authorizer.AuthorizerFunc(mastersOnly)
	}
	if config.Healthy == nil {
		config.Healthy = func() error { return nil }
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	s := &Server{config: config, reader: logs.NewReader(config.Clock, config.Log), usage: newUsage(config)}
	s.handler = s.authenticated(s.routes())
	return s, nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, method := range []string{"GET", "POST"} {
		for path, handle := range map[string]http.HandlerFunc{
			"/exec/{namespace}/{pod}/{container}":         s.exec,
			"/exec/{namespace}/{pod}/{uid}/{container}":   s.exec,
			"/attach/{namespace}/{pod}/{container}":       s.attach,
			"/attach/{namespace}/{pod}/{uid}/{container}": s.attach,
			"/portForward/{namespace}/{pod}":              s.portForward,
			"/portForward/{namespace}/{pod}/{uid}":        s.portForward,
		} {
			mux.HandleFunc(method+" "+path, handle)
		}
	}
	mux.HandleFunc("POST /run/{namespace}/{pod}/{container}", s.run)
	mux.HandleFunc("POST /run/{namespace}/{pod}/{uid}/{container}", s.run)
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /pods/{$}", s.pods)
	mux.HandleFunc("GET /runningpods/{$}", s.runningPods)
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /healthz/{check}", s.healthz)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.Handle("GET /metrics", legacyregistry.Handler())
	mux.Handle("GET /metrics/resource", s.resourceMetrics())
	return mux
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// shutdownGrace is how long requests in flight may take when the server ends.
// Streams end at once: their context is the server's.
const shutdownGrace = 2 * time.Second

// Serve answers on the listener, over TLS, until ctx ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	server := &http.Server{
		Handler:           s,
		TLSConfig:         s.config.TLS.Clone(),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       90 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	endRequests()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		server.Close()
	}
	return nil
}

// refuse answers with an error's text and nothing else, as the API server shows it.
func refuse(w http.ResponseWriter, code int, format string, args ...any) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	fmt.Fprintf(w, format, args...)
}

// pod finds the Pod that the request's path names, or answers that there is none.
func (s *Server) pod(w http.ResponseWriter, r *http.Request) (*v1.Pod, bool) {
	pod, ok := s.config.Pods.PodByName(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok {
		refuse(w, http.StatusNotFound, "pod does not exist")
		return nil, false
	}
	if uid := r.PathValue("uid"); uid != "" && uid != string(pod.UID) {
		refuse(w, http.StatusNotFound, "pod not found")
		return nil, false
	}
	return pod, true
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	s.list(w, s.config.Pods.Pods())
}

// runningPods has those with a sandbox.
func (s *Server) runningPods(w http.ResponseWriter, _ *http.Request) {
	var running []*v1.Pod
	for _, pod := range s.config.Pods.Pods() {
		if _, ok := s.config.Pods.SandboxID(pod.UID); ok {
			running = append(running, pod)
		}
	}
	s.list(w, running)
}

func (s *Server) list(w http.ResponseWriter, pods []*v1.Pod) {
	list := &v1.PodList{Items: make([]v1.Pod, 0, len(pods))}
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	text, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(v1.SchemeGroupVersion), list)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.write(w, text)
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	if err := s.config.Healthy(); err != nil {
		refuse(w, http.StatusInternalServerError, "[-]syncloop failed: %v\nhealthz check failed\n", err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	s.write(w, []byte("ok"))
}

// write logs what it cannot tell the client, who has left.
func (s *Server) write(w io.Writer, text []byte) {
	if _, err := w.Write(text); err != nil {
		s.config.Log.Debug("answer not written", "err", err)
	}
}

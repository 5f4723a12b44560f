package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"mend/internal/pki"
	"mend/internal/store"
	"mend/internal/version"
)

// Config is what a [Server] is made of. Etcd is required; without a listener the
// server is reached in process only, and needs no PKI.
type Config struct {
	// Etcd is the in-process client of the store.
	Etcd *clientv3.Client
	// StoreHealth is asked by /livez and /readyz; may be nil.
	StoreHealth func(ctx context.Context) error
	// PKI signs the serving certificate and vouches for clients.
	PKI *pki.Authority
	// Listen takes TLS connections; the server closes it.
	Listen net.Listener
	// Hosts are the names and addresses that clients use beyond the usual ones
	// (localhost, 127.0.0.1, kubernetes.default.svc.<ClusterDomain>, the
	// Service's address).
	Hosts []string
	// ClusterDomain is the DNS domain of Services; default "cluster.local".
	ClusterDomain string
	// ServiceClusterIPRange is the range of Services' addresses, or one of each family
	// with a comma between; default 10.96.0.0/12. The first one's family is the default,
	// and its first address that of default/kubernetes. They become the ServiceCIDR
	// "kubernetes", beside which others may be created.
	ServiceClusterIPRange string
	// ServiceNodePortRange is first and last node port; default 30000–32767.
	ServiceNodePortRange [2]int
	// Kubelets reaches the nodes' agents for log, exec, attach, port-forward and
	// proxy. Without it those answer 503.
	Kubelets KubeletConnector
	// Authorizer decides who may do what; default [DefaultAuthorizer].
	Authorizer authorizer.Authorizer
	// EventTTL is how long events live; default one hour.
	EventTTL time.Duration
	// CompactionInterval is the age of revisions that are dropped; default
	// [store.CompactionInterval].
	CompactionInterval time.Duration
	// Log is the server's log; default slog.Default().
	Log *slog.Logger
}

// Server is the API server. New makes one that already answers in process; Run
// serves the listener and does the rest.
type Server struct {
	config  Config
	generic *genericapiserver.GenericAPIServer
	// inProcess serves the requests of this process.
	inProcess http.Handler
	backend   *backend
	// resources are the storage of each row of the table, by plural.
	resources map[string]*resource
	pods      *podStorage
	book      *addressBook
	base      context.Context
	stop      context.CancelFunc
	writing   atomic.Int64 // in-process requests that write, but for events
}

// New builds the server. It fails when a kind cannot be installed or the
// configuration is contradictory; the error names the field.
func New(config Config) (*Server, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	allowPrivileged()
	if err := withoutCacheSnapshots(); err != nil {
		return nil, err
	}
	s := &Server{config: config, backend: newBackend(config.Etcd, config.CompactionInterval)}
	s.base, s.stop = context.WithCancel(context.Background())
	if err := s.build(); err != nil {
		s.stop()
		s.backend.close()
		return nil, err
	}
	return s, nil
}

func (c *Config) complete() error {
	if c.Etcd == nil {
		return errors.New("apiserver: Config.Etcd is required")
	}
	if c.Listen != nil && c.PKI == nil {
		return errors.New("apiserver: Config.PKI is required with Config.Listen")
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.ServiceClusterIPRange == "" {
		c.ServiceClusterIPRange = "10.96.0.0/12"
	}
	if c.ServiceNodePortRange == [2]int{} {
		c.ServiceNodePortRange = [2]int{30000, 32767}
	}
	if c.Authorizer == nil {
		c.Authorizer = DefaultAuthorizer()
	}
	if c.EventTTL == 0 {
		c.EventTTL = time.Hour
	}
	if c.CompactionInterval == 0 {
		c.CompactionInterval = store.CompactionInterval
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// drainLimit is how long requests under way may take when the server stops.
const drainLimit = 3 * time.Second

// Run serves until ctx ends: TLS on the listener, if there is one, and the
// namespaces that always exist. Then new requests are refused, those under way
// have three seconds to end, watches and streams are broken off, and the storage
// is closed.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	hooks, stopHooks := context.WithCancel(ctx)
	defer stopHooks()
	s.generic.RunPostStartHooks(hooks)
	if s.config.Listen == nil {
		<-ctx.Done()
		s.drain()
		return nil
	}
	return s.serve(ctx, s.config.Listen, s.drain)
}

// Serve serves on one more listener, under further names and addresses, until ctx
// or Run ends. Run must have been called. The listener is closed.
func (s *Server) Serve(ctx context.Context, listener net.Listener, hosts ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()
	return s.serve(ctx, listener, func() {}, hosts...)
}

// serve serves until ctx ends; ending is called before connections are closed.
func (s *Server) serve(ctx context.Context, listener net.Listener, ending func(), hosts ...string) error {
	server, err := s.httpServer(hosts)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-failed:
		return fmt.Errorf("apiserver: %w", err)
	case <-ctx.Done():
	}
	ending()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainLimit)
	defer cancel()
	if err := server.Shutdown(limit); err != nil {
		return server.Close()
	}
	return nil
}

// drain waits for requests under way, the loops' among them, and ends watches
// and streams.
func (s *Server) drain() {
	drained := make(chan struct{})
	go func() {
		s.generic.NonLongRunningRequestWaitGroup.Wait()
		close(drained)
	}()
	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	select {
	case <-drained:
	case <-limit.C:
		s.config.Log.Warn("requests are broken off: they did not end in time", "limit", drainLimit)
	}
	s.stop()
}

func (s *Server) httpServer(hosts []string) (*http.Server, error) {
	server := &http.Server{
		Handler:           uncompressed(s.endingWithServer(s.generic.Handler)),
		TLSConfig:         s.servingTLS(hosts),
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
	err := http2.ConfigureServer(server, &http2.Server{
		IdleTimeout:              90 * time.Second,
		MaxUploadBufferPerStream: 256 << 10,
		MaxReadFrameSize:         256 << 10,
		MaxConcurrentStreams:     250,
	})
	return server, err
}

// uncompressed answers clients on this machine without compression, which costs both ends
// more than it saves between them.
func uncompressed(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if from, err := netip.ParseAddrPort(req.RemoteAddr); err == nil && from.Addr().Unmap().IsLoopback() {
			req.Header.Del("Accept-Encoding")
		}
		handler.ServeHTTP(w, req)
	})
}

// endingWithServer ends every request's context when the server stops.
func (s *Server) endingWithServer(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		defer context.AfterFunc(s.base, cancel)()
		handler.ServeHTTP(w, req.WithContext(ctx))
	})
}

func (s *Server) servingTLS(more []string) *tls.Config {
	hosts := []string{"localhost", "127.0.0.1", "::1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + s.config.ClusterDomain}
	hosts = slices.Concat(hosts, s.config.Hosts, more)
	hosts = append(hosts, s.book.ofKubernetes().String())
	return s.config.PKI.ServingConfig(pki.Serving{Name: "mend-apiserver", Hosts: hosts})
}

// close ends in-process requests and closes the storage.
func (s *Server) close() {
	s.stop()
	s.generic.Destroy()
	s.backend.close()
}

// ClientConfig reaches the server in process, in protobuf and without a limit.
// With no groups the client is one of mend's own loops: user is the loop's name
// and the server sees system:mend:<user>. With groups, user and groups are taken
// as they are.
func (s *Server) ClientConfig(userName string, groups ...string) *rest.Config {
	return s.clientConfigOn(s.inProcess, userName, groups...)
}

func (s *Server) clientConfigOn(handler http.Handler, userName string, groups ...string) *rest.Config {
	who := &user.DefaultInfo{Name: userName, Groups: groups}
	if len(groups) == 0 {
		who.Name, who.Groups = LoopUserPrefix+userName, []string{LoopsGroup}
	}
	direct := &transport{handler: handler, who: who, base: s.base}
	if userName != EventsUser {
		direct.writing = &s.writing
	}
	return &rest.Config{
		Host:      "http://in-process",
		Transport: direct,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		QPS:                -1,
		DisableCompression: true,
		UserAgent:          "mend-" + strings.ReplaceAll(userName, ":", "-") + "/" + version.Version,
	}
}

// EventsUser is the user name under which events are written.
const EventsUser = "events"

// Writing is how many writes of this process are under way, those of events
// aside. Events wait for the others.
func (s *Server) Writing() int { return int(s.writing.Load()) }

// Ready is nil when the server answers /readyz with ok; otherwise the error says
// which check fails.
func (s *Server) Ready() error {
	ctx, cancel := context.WithTimeout(s.base, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://in-process/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := s.ClientConfig("ready").Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// To its end: a body that is closed before is an abort, which the server logs.
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return fmt.Errorf("apiserver is not ready: %s", failedChecks(string(text)))
}

func failedChecks(text string) string {
	var failed []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "[-]") {
			failed = append(failed, strings.TrimPrefix(line, "[-]"))
		}
	}
	if len(failed) == 0 {
		return strings.TrimSpace(text)
	}
	return strings.Join(failed, "; ")
}

// systemNamespaces exist always.
var systemNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"}

func (s *Server) createSystemNamespaces(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.ClientConfig("apiserver"))
	if err != nil {
		return err
	}
	for _, name := range systemNamespaces {
		if err := ensureNamespace(ctx, client, name); err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return nil
}

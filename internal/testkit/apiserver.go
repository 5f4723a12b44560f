package testkit

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"mend/internal/apiserver"
	"mend/internal/pki"
	"mend/internal/store"
)

// APIServer is a running API server and an administrator's client on it. It
// ends with its test.
type APIServer struct {
	*apiserver.Server
	// Client is an administrator's, in process.
	Client kubernetes.Interface
	// Rest is the configuration of Client.
	Rest *rest.Config
	// Store is what the server keeps its state in, PKI what signs for it.
	Store *store.Store
	PKI   *pki.Authority
	// URL is empty unless the server listens.
	URL string
}

// Option changes the server's configuration before it starts.
type Option func(t testing.TB, config *apiserver.Config)

// Listening makes the server also take TLS connections on a loopback port.
func Listening(t testing.TB, config *apiserver.Config) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config.Listen = listener
}

var quietKlog sync.Once

// QuietLibraries sends the log of the Kubernetes libraries nowhere. They read where it
// goes without a lock, so who runs an API server of his own calls it before.
func QuietLibraries() {
	quietKlog.Do(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })
}

// StartAPIServer starts a server with the four system namespaces and nothing
// else, and returns when it is ready. State is not synced to disk.
func StartAPIServer(t testing.TB, options ...Option) *APIServer {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	QuietLibraries()
	dir := t.TempDir()
	state, err := store.Open(store.Config{DataDir: dir, Log: log, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { state.Close() })
	authority, err := pki.Open(dir+"/pki", pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	config := apiserver.Config{Etcd: state.Client(), StoreHealth: state.Health, PKI: authority, Log: log}
	for _, option := range options {
		option(t, &config)
	}
	server, err := apiserver.New(config)
	if err != nil {
		t.Fatal(err)
	}
	run(t, server)
	s := &APIServer{Server: server, Store: state, PKI: authority, Rest: server.ClientConfig("admin", "system:masters")}
	if config.Listen != nil {
		s.URL = "https://" + config.Listen.Addr().String()
	}
	if s.Client, err = kubernetes.NewForConfig(s.Rest); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs the server until the test is over.
func run(t testing.TB, server *apiserver.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("API server: %v", err)
		}
	})
	WaitFor(t, "the API server to be ready", server.Ready)
}

// Kubeconfig is a kubeconfig file for user in groups; the server must listen.
func (s *APIServer) Kubeconfig(t testing.TB, user string, groups ...string) []byte {
	t.Helper()
	text, err := s.PKI.Kubeconfig(s.URL, user, groups)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// WaitFor waits until check returns nil, and fails the test with its last error
// after 30 seconds.
func WaitFor(t testing.TB, what string, check func() error) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-limit.C:
			t.Fatalf("waited too long for %s: %v", what, err)
		case <-tick.C:
		}
	}
}

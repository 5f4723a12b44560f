package probe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// portAt splits a server's address.
func portAt(t *testing.T, address string) (host string, port int32) {
	t.Helper()
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return host, int32(number)
}

// refusing is an address at which nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func once(t *testing.T, spec *v1.Probe, container *v1.Container, host string) attempt {
	t.Helper()
	p := newProber(Options{}.withDefaults())
	return p.attempt(t.Context(), Readiness, spec, Target{Pod: &v1.Pod{}, Container: container, PodIP: host})
}

func webHandler(seen chan<- *http.Request) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/code/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		w.WriteHeader(code)
		fmt.Fprint(w, "the body")
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 3*maxOutput)) })
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/code/200", http.StatusFound) })
	mux.HandleFunc("/here-bad", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/code/500", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/seen", func(_ http.ResponseWriter, r *http.Request) { seen <- r })
	return mux
}

func TestHTTPProbe(t *testing.T) {
	seen := make(chan *http.Request, 1)
	plain := httptest.NewServer(webHandler(seen))
	defer plain.Close()
	secure := httptest.NewTLSServer(webHandler(seen))
	defer secure.Close()
	for name, test := range map[string]struct {
		server string
		path   string
		scheme v1.URIScheme
		result Result
		event  string
	}{
		"200":                        {path: "/code/200", result: Success},
		"399 is a success":           {path: "/code/399", result: Success, event: "Readiness probe warning: Probe terminated redirects, Response body: the body"},
		"400":                        {path: "/code/400", result: Failure, event: "Readiness probe failed: HTTP probe failed with statuscode: 400"},
		"500 without the body":       {path: "/code/500", result: Failure, event: "Readiness probe failed: HTTP probe failed with statuscode: 500"},
		"redirect on the host":       {path: "/here", result: Success},
		"redirect to a failure":      {path: "/here-bad", result: Failure, event: "Readiness probe failed: HTTP probe failed with statuscode: 500"},
		"redirect elsewhere":         {path: "/away", result: Success, event: "Readiness probe warning: Probe terminated redirects, Response body: <a href=\"http://elsewhere.invalid/\">Found</a>.\n\n"},
		"redirect without end":       {path: "/round", result: Failure, event: `Readiness probe failed: Get "/round": stopped after 10 redirects`},
		"a certificate of nobody":    {server: secure.URL, scheme: v1.URISchemeHTTPS, path: "/code/200", result: Success},
		"plain text to a TLS server": {server: secure.URL, path: "/code/200", result: Failure, event: "Readiness probe failed: HTTP probe failed with statuscode: 400"},
		"nothing listens":            {server: "http://" + refusing(t), path: "/healthz", result: Failure, event: `Readiness probe failed: Get "http://ADDRESS/healthz": dial tcp ADDRESS: connect: connection refused`},
		"too slow":                   {path: "/slow", result: Failure, event: `Readiness probe failed: Get "http://ADDRESS/slow": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`},
		"a long answer is cut":       {path: "/big", result: Success},
		"a path that is no URL":      {path: "/%zz", result: Failure, event: "Readiness probe failed: HTTP probe failed with statuscode: 404"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.server == "" {
				test.server = plain.URL
			}
			at, err := url.Parse(test.server)
			if err != nil {
				t.Fatal(err)
			}
			host, port := portAt(t, at.Host)
			got := once(t, &v1.Probe{TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{
				Path: test.path, Port: intstr.FromInt32(port), Scheme: test.scheme,
			}}}, &v1.Container{}, host)
			event := ""
			if got.reason != "" {
				event = got.eventMessage(Readiness)
			}
			want := strings.ReplaceAll(test.event, "ADDRESS", at.Host)
			if got.result != test.result || event != want {
				t.Errorf("got result %d, event %q\nwant result %d, event %q", got.result, event, test.result, want)
			}
			if len(got.output) > maxOutput+100 {
				t.Errorf("output of %d bytes is kept", len(got.output))
			}
		})
	}
}

func TestHTTPProbeRequest(t *testing.T) {
	seen := make(chan *http.Request, 1)
	server := httptest.NewServer(webHandler(seen))
	defer server.Close()
	host, port := portAt(t, server.Listener.Addr().String())
	container := &v1.Container{Ports: []v1.ContainerPort{{Name: "other", ContainerPort: 1}, {Name: "web", ContainerPort: port}}}
	for name, test := range map[string]struct {
		headers []v1.HTTPHeader
		check   func(r *http.Request) string
		want    string
	}{
		"user agent":         {check: func(r *http.Request) string { return r.UserAgent() }, want: userAgent()},
		"own user agent":     {headers: []v1.HTTPHeader{{Name: "user-agent", Value: "me"}}, check: func(r *http.Request) string { return r.UserAgent() }, want: "me"},
		"accept":             {check: func(r *http.Request) string { return r.Header.Get("Accept") }, want: "*/*"},
		"empty accept":       {headers: []v1.HTTPHeader{{Name: "Accept"}}, check: func(r *http.Request) string { return fmt.Sprint(r.Header["Accept"]) }, want: "[]"},
		"host header":        {headers: []v1.HTTPHeader{{Name: "Host", Value: "example.com"}}, check: func(r *http.Request) string { return r.Host }, want: "example.com"},
		"repeated header":    {headers: []v1.HTTPHeader{{Name: "X-A", Value: "1"}, {Name: "X-A", Value: "2"}}, check: func(r *http.Request) string { return fmt.Sprint(r.Header["X-A"]) }, want: "[1 2]"},
		"query of the path":  {check: func(r *http.Request) string { return r.URL.RawQuery }, want: "a=b"},
		"no compression":     {check: func(r *http.Request) string { return r.Header.Get("Accept-Encoding") }, want: ""},
		"connection is shut": {check: func(r *http.Request) string { return fmt.Sprint(r.Close) }, want: "true"},
	} {
		t.Run(name, func(t *testing.T) {
			got := once(t, &v1.Probe{TimeoutSeconds: 5, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{
				Path: "/seen?a=b", Port: intstr.FromString("web"), HTTPHeaders: test.headers,
			}}}, container, host)
			if got.result != Success {
				t.Fatalf("probe: %+v", got)
			}
			if value := test.check(<-seen); value != test.want {
				t.Errorf("got %q, want %q", value, test.want)
			}
		})
	}
	if agent := userAgent(); !strings.HasPrefix(agent, "kube-probe/") {
		t.Errorf("user agent %q", agent)
	}
}

func TestTCPProbe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	closed := refusing(t)
	_, open := portAt(t, listener.Addr().String())
	_, shut := portAt(t, closed)
	for name, test := range map[string]struct {
		action v1.TCPSocketAction
		result Result
		event  string
	}{
		"open":                  {action: v1.TCPSocketAction{Port: intstr.FromInt32(open)}, result: Success},
		"by name":               {action: v1.TCPSocketAction{Port: intstr.FromString("web")}, result: Success},
		"own host":              {action: v1.TCPSocketAction{Port: intstr.FromInt32(open), Host: "localhost"}, result: Success},
		"refused":               {action: v1.TCPSocketAction{Port: intstr.FromInt32(shut)}, result: Failure, event: "Readiness probe failed: dial tcp " + closed + ": connect: connection refused"},
		"no such name":          {action: v1.TCPSocketAction{Port: intstr.FromString("nope")}, result: Unknown, event: `Readiness probe errored and resulted in unknown state: port "nope" not found`},
		"a number that is none": {action: v1.TCPSocketAction{Port: intstr.FromInt32(70000)}, result: Unknown, event: "Readiness probe errored and resulted in unknown state: invalid port number: 70000"},
	} {
		t.Run(name, func(t *testing.T) {
			container := &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: open}}}
			got := once(t, &v1.Probe{TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{TCPSocket: &test.action}}, container, "127.0.0.1")
			event := ""
			if got.reason != "" {
				event = got.eventMessage(Readiness)
			}
			if got.result != test.result || event != test.event {
				t.Errorf("got result %d, event %q\nwant result %d, event %q", got.result, event, test.result, test.event)
			}
		})
	}
}

func TestTCPProbeTimesOutAsTheNetworkDoes(t *testing.T) {
	p := newProber(Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		<-ctx.Done() // as an address that drops packets
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}.withDefaults())
	got := p.attempt(t.Context(), Liveness, &v1.Probe{TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{
		TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)},
	}}, Target{Pod: &v1.Pod{}, Container: &v1.Container{}, PodIP: "127.0.0.1"})
	if want := "Liveness probe failed: dial tcp 127.0.0.1:80: i/o timeout"; got.eventMessage(Liveness) != want {
		t.Errorf("got %q, want %q", got.eventMessage(Liveness), want)
	}
}

func TestGRPCProbe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	states := health.NewServer()
	healthpb.RegisterHealthServer(server, states)
	states.SetServingStatus("sick", healthpb.HealthCheckResponse_NOT_SERVING)
	go server.Serve(listener)
	defer server.Stop()
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	without := grpc.NewServer()
	go without.Serve(bare)
	defer without.Stop()

	sick, unknown := "sick", "unknown"
	for name, test := range map[string]struct {
		address string
		service *string
		result  Result
		event   string
	}{
		"serving":         {address: listener.Addr().String(), result: Success},
		"not serving":     {address: listener.Addr().String(), service: &sick, result: Failure, event: `Liveness probe failed: service unhealthy (responded with "NOT_SERVING")`},
		"unknown service": {address: listener.Addr().String(), service: &unknown, result: Failure, event: "Liveness probe failed: error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"},
		"no health":       {address: bare.Addr().String(), result: Failure, event: "Liveness probe failed: error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health"},
		"nothing listens": {address: refusing(t), result: Failure, event: `Liveness probe failed: timeout: failed to connect service "ADDRESS" within 1s: context deadline exceeded`},
	} {
		t.Run(name, func(t *testing.T) {
			host, port := portAt(t, test.address)
			got := once(t, &v1.Probe{TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port, Service: test.service}}}, &v1.Container{}, host)
			event := ""
			if got.reason != "" {
				event = got.eventMessage(Liveness)
			}
			if want := strings.ReplaceAll(test.event, "ADDRESS", test.address); got.result != test.result || event != want {
				t.Errorf("got result %d, event %q\nwant result %d, event %q", got.result, event, test.result, want)
			}
		})
	}
}

// recorded is an Execer that keeps what it was asked.
type recorded struct {
	command []string
	timeout time.Duration
	output  string
}

func (r *recorded) ExecSync(_ context.Context, _ string, command []string, timeout time.Duration) ([]byte, []byte, error) {
	r.command, r.timeout = command, timeout
	return []byte(r.output), nil, nil
}

func TestExecProbeKnowsStaticVariablesOnly(t *testing.T) {
	asked := &recorded{output: strings.Repeat("x", 2*maxOutput)}
	p := newProber(Options{Execer: asked}.withDefaults())
	got := p.attempt(t.Context(), Startup, &v1.Probe{TimeoutSeconds: 7, ProbeHandler: v1.ProbeHandler{
		Exec: &v1.ExecAction{Command: []string{"check", "$(PORT)", "$(POD_NAME)", "$$(PORT)", "$HOME"}},
	}}, Target{Pod: &v1.Pod{}, Container: &v1.Container{Env: []v1.EnvVar{
		{Name: "PORT", Value: "1"}, {Name: "PORT", Value: "8080"},
	}}})
	if want := "check 8080 $(POD_NAME) $(PORT) $HOME"; strings.Join(asked.command, " ") != want {
		t.Errorf("command %q, want %q", asked.command, want)
	}
	if asked.timeout != 7*time.Second || len(got.output) != maxOutput {
		t.Errorf("timeout %v, %d bytes kept", asked.timeout, len(got.output))
	}
}

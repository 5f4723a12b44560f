package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// web is what a container keeps as a server: the orders that it was given over
// HTTP. They are gone when the container is.
type web struct {
	mu     sync.Mutex
	sick   bool
	deaf   bool
	delay  time.Duration
	served int
	leaked int64 // MiB
}

func (w *web) isDeaf() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deaf
}

func (c *container) version() string {
	_, tag := splitTag(c.image.name)
	for _, pair := range c.config.Envs {
		if pair.Key == "VERSION" {
			return string(pair.Value)
		}
	}
	return tag
}

func (c *container) podName() string {
	for _, key := range []string{"POD_NAME", "HOSTNAME"} {
		for _, pair := range c.config.Envs {
			if pair.Key == key && len(pair.Value) > 0 {
				return string(pair.Value)
			}
		}
	}
	if c.box.config.Hostname != "" {
		return c.box.config.Hostname
	}
	return c.box.config.Metadata.Name
}

// served is one container as a server.
type served struct {
	runtime *Runtime
	c       *container
}

func (s *served) handler() http.Handler {
	mux := http.NewServeMux()
	if !s.c.traits.listen.Sample {
		mux.HandleFunc("/", s.health)
		return s.framed(mux)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "web %s on %s\n", s.c.version(), s.c.podName())
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.c.version()) })
	mux.HandleFunc("GET /hostname", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.c.podName()) })
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("POST /healthz/{state}", s.order("fail", "ok", func(on bool) { s.c.web.sick = on }))
	mux.HandleFunc("POST /sigterm/{state}", s.order("ignore", "obey", func(on bool) { s.c.web.deaf = on }))
	mux.HandleFunc("POST /exit", s.exit)
	mux.HandleFunc("POST /leak", s.leak)
	mux.HandleFunc("POST /slow", s.slow)
	return s.framed(mux)
}

// framed drops the connection when the container has ended, waits as told, and
// logs. Health checks are not logged: thousands of Pods would write all day.
func (s *served) framed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := s.runtime.clock.Now()
		s.c.web.mu.Lock()
		s.c.web.served++
		delay := s.c.web.delay
		s.c.web.mu.Unlock()
		if r.Method == http.MethodPost {
			delay = 0
		}
		delay += s.c.traits.listen.Latency.Duration
		if err := s.runtime.pause(r.Context(), delay); err != nil || !s.runtime.isRunning(s.c) {
			panic(http.ErrAbortHandler)
		}
		answer := &recorder{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(answer, r)
		if s.c.traits.listen.Sample && r.URL.Path != "/healthz" {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			s.runtime.print(s.c, fmt.Sprintf("%s %s %s %s %d %.3fs", start.UTC().Format(time.RFC3339), host,
				r.Method, r.URL.Path, answer.code, s.runtime.clock.Since(start).Seconds()))
		}
	})
}

type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach the real writer.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// healthStatus is what /healthz answers now.
func (s *served) healthStatus() int {
	s.c.web.mu.Lock()
	sick := s.c.web.sick
	s.c.web.mu.Unlock()
	if sick || !s.runtime.isReady(s.c) {
		return http.StatusServiceUnavailable
	}
	if status := s.c.traits.listen.HealthStatus; status != 0 {
		return status
	}
	return http.StatusOK
}

func (s *served) health(w http.ResponseWriter, _ *http.Request) {
	status := s.healthStatus()
	if status >= http.StatusBadRequest {
		http.Error(w, "unhealthy, as told", status)
		return
	}
	w.WriteHeader(status)
	fmt.Fprintln(w, "ok")
}

func (s *served) status(w http.ResponseWriter, _ *http.Request) {
	s.runtime.mu.Lock()
	uptime := s.runtime.clock.Now().Sub(time.Unix(0, s.c.started))
	s.runtime.mu.Unlock()
	s.c.web.mu.Lock()
	defer s.c.web.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{
		"version": s.c.version(), "pod": s.c.podName(), "healthy": !s.c.web.sick, "served": s.c.web.served,
		"uptimeSeconds": int(uptime.Seconds()), "leakedMiB": s.c.web.leaked,
		"delay": s.c.web.delay.String(), "ignoresSIGTERM": s.c.web.deaf,
	})
}

// order is a POST whose last path element is one of two words.
func (s *served) order(yes, no string, set func(on bool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		got := r.PathValue("state")
		if got != yes && got != no {
			http.Error(w, fmt.Sprintf("%q: want %q or %q", got, yes, no), http.StatusBadRequest)
			return
		}
		s.c.web.mu.Lock()
		set(got == yes)
		s.c.web.mu.Unlock()
		fmt.Fprintln(w, "done")
	}
}

func (s *served) exit(w http.ResponseWriter, r *http.Request) {
	code, err := number(r, "code", 1, 255)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "exiting with code %d\n", code)
	s.runtime.print(s.c, fmt.Sprintf("web: exiting with code %d, as told", code))
	s.runtime.endSoon(s.c, ending{code: int32(code)})
}

// leak ends the container as out of memory when it has a limit and passes it.
func (s *served) leak(w http.ResponseWriter, r *http.Request) {
	mb, err := number(r, "mb", 64, 1<<20)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "leaking %d MiB\n", mb)
	s.c.web.mu.Lock()
	s.c.web.leaked += int64(mb)
	leaked := s.c.web.leaked << 20
	s.c.web.mu.Unlock()
	s.runtime.mu.Lock()
	limit := s.c.limits.GetMemoryLimitInBytes()
	s.runtime.mu.Unlock()
	if limit > 0 && leaked >= limit {
		s.runtime.endSoon(s.c, ending{code: 137, reason: "OOMKilled"})
	}
}

func (s *served) slow(w http.ResponseWriter, r *http.Request) {
	ms, err := number(r, "ms", 1000, 3_600_000)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.c.web.mu.Lock()
	s.c.web.delay = time.Duration(ms) * time.Millisecond
	s.c.web.mu.Unlock()
	fmt.Fprintln(w, "done")
}

// number reads a query parameter between 0 and most.
func number(r *http.Request, key string, preset, most int) (int, error) {
	text := r.FormValue(key)
	if text == "" {
		return preset, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && (n < 0 || n > most) {
		err = errors.New("out of range")
	}
	if err != nil {
		return 0, fmt.Errorf("%s=%q: want a number from 0 to %d", key, text, most)
	}
	return n, nil
}

// endSoon ends a container a moment later, so that the answer still goes out.
func (r *Runtime) endSoon(c *container, how ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.later(c, "order", 20*time.Millisecond, func() { r.end(c, how) })
	}
}

func (r *Runtime) isRunning(c *container) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.state == runtimeapi.ContainerState_CONTAINER_RUNNING
}

func (r *Runtime) isReady(c *container) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.clock.Now().Before(c.readyAt)
}

// fetch is curl inside a container: localhost is the container's own sandbox.
func (r *Runtime) fetch(c *container, method, url string, timeout time.Duration) (int, []byte, error) {
	ctx, cancel := r.withTimeout(context.Background(), timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, nil, err
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
			number, err := strconv.Atoi(port)
			if err != nil {
				return nil, err
			}
			return r.connect(c.box, number)
		}
		return r.Dial(ctx, network, address)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, errors.New(strings.TrimPrefix(err.Error(), "Get "))
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, body, err
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ports are what the sample manifests expect: 80 as nginx, 8080 as myrepo/web.
var ports = []string{"80", "8080"}

// drainTime is how long requests in flight may take after SIGTERM. The Pod's grace
// period usually ends first.
const drainTime = 25 * time.Second

// server answers with its version and its Pod's name, and does what it is told over
// HTTP. Its orders are in memory: a restarted container behaves again.
type server struct {
	version string
	pod     string
	started time.Time

	sick    atomic.Bool  // /healthz fails
	delay   atomic.Int64 // nanoseconds before each answer
	deaf    atomic.Bool  // SIGTERM is ignored
	served  atomic.Int64
	exit    func(code int)
	logLine func(line string)

	mu     sync.Mutex
	hoards [][]byte // leaked memory
}

func serve(std streams) int {
	s := &server{
		version: os.Getenv("VERSION"),
		pod:     podName(),
		started: time.Now(),
		exit:    os.Exit,
		logLine: func(line string) { fmt.Fprintln(std.out, line) },
	}
	s.deaf.Store(os.Getenv("IGNORE_SIGTERM") != "")
	terms := make(chan os.Signal, 4)
	signal.Notify(terms, syscall.SIGTERM, syscall.SIGINT)

	servers, err := listen(s.handler())
	if err != nil {
		fmt.Fprintf(std.err, "web: %v\n", err)
		return 1
	}
	s.logLine(fmt.Sprintf("web %s on %s: serving on ports %s", s.version, s.pod, strings.Join(ports, " and ")))
	for sig := range terms {
		if os.Getenv("EXIT_ON_SIGTERM") != "" {
			return 0 // as programs do that do not care: open connections break
		}
		if s.deaf.Load() {
			s.logLine(fmt.Sprintf("web: %v ignored, as told", sig))
			continue
		}
		break
	}
	s.logLine("web: terminating")
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	for _, srv := range servers {
		srv.Shutdown(ctx)
	}
	return 0
}

// listen serves on every port, on IPv4 and IPv6.
func listen(h http.Handler) ([]*http.Server, error) {
	var servers []*http.Server
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort("", port))
		if err != nil {
			return nil, err
		}
		srv := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
		servers = append(servers, srv)
		go srv.Serve(l)
	}
	return servers, nil
}

// podName is the Pod's name: what the downward API gave, or else the hostname.
func podName() string {
	for _, key := range []string{"POD_NAME", "HOSTNAME"} {
		if name := os.Getenv(key); name != "" {
			return name
		}
	}
	return firstLine("/proc/sys/kernel/hostname")
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.hello)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.version) })
	mux.HandleFunc("GET /hostname", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.pod) })
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("POST /healthz/{state}", s.setHealth)
	mux.HandleFunc("POST /exit", s.setExit)
	mux.HandleFunc("POST /leak", s.leak)
	mux.HandleFunc("POST /slow", s.slow)
	mux.HandleFunc("GET /slow", s.late)
	mux.HandleFunc("POST /sigterm/{state}", s.setDeaf)
	return s.logged(mux)
}

// logged writes one access log line per request, and makes the answer wait when the
// server was told to be slow. Orders themselves never wait.
func (s *server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		if d := time.Duration(s.delay.Load()); d > 0 && r.Method != http.MethodPost {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		}
		rec := &recorder{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(rec, r)
		s.served.Add(1)
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		s.logLine(fmt.Sprintf("%s %s %s %s %d %.3fs", start.UTC().Format(time.RFC3339), host, r.Method, r.URL.Path, rec.code, time.Since(start).Seconds()))
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

func (s *server) hello(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintf(w, "web %s on %s\n", s.version, s.pod)
}

func (s *server) status(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	leaked := len(s.hoards)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{
		"version": s.version, "pod": s.pod, "healthy": !s.sick.Load(), "served": s.served.Load(),
		"uptimeSeconds": int(time.Since(s.started).Seconds()), "leakedMiB": leaked,
		"delay": time.Duration(s.delay.Load()).String(), "ignoresSIGTERM": s.deaf.Load(),
	})
}

func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	if s.sick.Load() {
		http.Error(w, "unhealthy, as told", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// setHealth is POST /healthz/fail and POST /healthz/ok.
func (s *server) setHealth(w http.ResponseWriter, r *http.Request) {
	sick, err := oneOf(r.PathValue("state"), "fail", "ok")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.sick.Store(sick)
	fmt.Fprintln(w, "done")
}

// setDeaf is POST /sigterm/ignore and POST /sigterm/obey.
func (s *server) setDeaf(w http.ResponseWriter, r *http.Request) {
	deaf, err := oneOf(r.PathValue("state"), "ignore", "obey")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.deaf.Store(deaf)
	fmt.Fprintln(w, "done")
}

func oneOf(got, yes, no string) (bool, error) {
	if got != yes && got != no {
		return false, fmt.Errorf("%q: want %q or %q", got, yes, no)
	}
	return got == yes, nil
}

// setExit is POST /exit?code=N: the process ends with that code (0 to 255, 1 when
// none is given) after the answer went out.
func (s *server) setExit(w http.ResponseWriter, r *http.Request) {
	code, err := number(r, "code", 1, 255)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "exiting with code %d\n", code)
	http.NewResponseController(w).Flush()
	s.logLine(fmt.Sprintf("web: exiting with code %d, as told", code))
	time.AfterFunc(20*time.Millisecond, func() { s.exit(code) })
}

// leak is POST /leak?mb=N: N MiB (64 when none is given) are taken, written to and
// never given back.
func (s *server) leak(w http.ResponseWriter, r *http.Request) {
	mb, err := number(r, "mb", 64, 1<<20)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "leaking %d MiB\n", mb)
	http.NewResponseController(w).Flush()
	for range mb {
		page := make([]byte, 1<<20)
		for i := 0; i < len(page); i += 4096 {
			page[i] = 1
		}
		s.mu.Lock()
		s.hoards = append(s.hoards, page)
		s.mu.Unlock()
	}
}

// slow is POST /slow?ms=N: every later answer waits N milliseconds; 0 ends that.
func (s *server) slow(w http.ResponseWriter, r *http.Request) {
	ms, err := number(r, "ms", 1000, 3_600_000)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.delay.Store(int64(ms) * int64(time.Millisecond))
	fmt.Fprintln(w, "done")
}

// late is GET /slow?ms=N: this one answer comes after N milliseconds.
func (s *server) late(w http.ResponseWriter, r *http.Request) {
	ms, err := number(r, "ms", 1000, 3_600_000)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		s.hello(w, r)
	case <-r.Context().Done():
	}
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

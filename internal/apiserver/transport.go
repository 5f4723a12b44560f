package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identityKey is the context key under which an in-process request says who
// makes it. Only this package can set it: no header, and nothing that arrives
// over a socket, becomes an identity this way.
type identityKey struct{}

func authenticateInProcess(req *http.Request) (*authenticator.Response, bool, error) {
	who, ok := req.Context().Value(identityKey{}).(user.Info)
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: who}, true, nil
}

// transport is an http.RoundTripper straight into a handler, on behalf of who. The
// response's body streams, but that of a write, which is whole when RoundTrip returns;
// the request ends when its context does, when the body is closed, and when the server
// stops. Connection upgrades (exec, port-forward) are not possible on it.
type transport struct {
	handler http.Handler
	who     user.Info
	base    context.Context // ends with the server
	writing *atomic.Int64   // requests that write and are under way; may be nil
}

// RoundTrip returns once the handler has sent its headers, or, of a write, ended.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.base.Err(); err != nil {
		return nil, errors.New("the API server has stopped")
	}
	// The caller's context only ends the request. Its values stay behind: a
	// handler that calls the server again must not pass on whose request it was.
	ctx, cancel := context.WithCancel(context.WithValue(t.base, identityKey{}, t.who))
	stream := newStream(cancel)
	stream.setStop(context.AfterFunc(req.Context(), func() { stream.finish(req.Context().Err()) }))

	served := &http.Request{
		Method: req.Method, URL: &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery},
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: req.Header.Clone(), Body: req.Body, ContentLength: req.ContentLength,
		Host: req.URL.Host, RemoteAddr: "127.0.0.1:0", RequestURI: req.URL.RequestURI(),
	}
	if served.Header == nil {
		served.Header = http.Header{}
	}
	if served.Body == nil {
		served.Body = http.NoBody
	}
	if isWrite(req) {
		// In the caller's goroutine: a new one would have to grow its stack for each.
		stream.limit = math.MaxInt
		t.serve(served.WithContext(ctx), stream)
		if err := req.Context().Err(); err != nil {
			return nil, err
		}
		return stream.response(req)
	}
	go t.serve(served.WithContext(ctx), stream)

	select {
	case <-stream.started:
		return stream.response(req)
	case <-req.Context().Done():
		stream.Close()
		return nil, req.Context().Err()
	case <-t.base.Done():
		stream.Close()
		return nil, errors.New("the API server is stopping")
	}
}

// isWrite says whether the handler answers once it is done. What is proxied to somewhere
// else may stream, whatever its method.
func isWrite(req *http.Request) bool {
	return req.Method != http.MethodGet && req.Method != http.MethodHead && !strings.Contains(req.URL.Path, "/proxy")
}

// serve runs the handler. A panic, http.ErrAbortHandler among them, breaks the
// response off, as it would break a connection.
func (t *transport) serve(req *http.Request, stream *stream) {
	if t.writing != nil && req.Method != http.MethodGet {
		t.writing.Add(1)
		defer t.writing.Add(-1)
	}
	defer func() {
		_ = req.Body.Close()
		switch cause := recover(); cause {
		case nil:
			stream.finish(io.EOF)
		case http.ErrAbortHandler:
			stream.finish(io.ErrUnexpectedEOF)
		default:
			stream.finish(fmt.Errorf("the API server's handler panicked: %v", cause))
		}
	}()
	t.handler.ServeHTTP(stream, req)
}

// streamLimit is how many bytes a handler may be ahead of its reader.
const streamLimit = 256 << 10

// stream is the http.ResponseWriter of the handler and the body of the response.
// Reading blocks until there is something to read, writing while more than limit bytes
// wait.
type stream struct {
	started chan struct{} // closed when the headers are fixed, or never will be
	cancel  func()        // ends the handler's context
	limit   int           // bytes

	mu      sync.Mutex
	stop    func() bool // ends the watch on the caller's context
	changed sync.Cond
	header  http.Header
	sent    http.Header
	status  int
	waiting bytes.Buffer
	done    error // io.EOF after a whole response
	closed  bool  // by the reader
	broken  bool  // ended before its headers
}

func newStream(cancel func()) *stream {
	s := &stream{started: make(chan struct{}), cancel: cancel, limit: streamLimit, stop: func() bool { return true }, header: http.Header{}}
	s.changed.L = &s.mu
	return s
}

func (s *stream) setStop(stop func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = stop
}

// Header is the map of headers until the first write.
func (s *stream) Header() http.Header { return s.header }

// WriteHeader fixes status and headers.
func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start(status)
}

func (s *stream) start(status int) {
	if s.status != 0 || s.broken || (status >= 100 && status < 200) {
		return
	}
	s.status, s.sent = status, s.header.Clone()
	close(s.started)
}

// Flush sends the headers; what was written is readable at once anyway.
func (s *stream) Flush() { s.WriteHeader(http.StatusOK) }

// CloseNotify is asked for by k8s.io/apiserver, which takes a writer without it
// for one that cannot stream. Handlers end by the request's context.
func (s *stream) CloseNotify() <-chan bool { return make(chan bool) }

// Write fails once the reader has gone.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start(http.StatusOK)
	for s.waiting.Len() > s.limit && !s.closed && s.done == nil {
		s.changed.Wait()
	}
	if s.closed || s.done != nil {
		return 0, io.ErrClosedPipe
	}
	n, err := s.waiting.Write(p)
	s.changed.Broadcast()
	return n, err
}

// Read gives what was written so far, or waits for more.
func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.waiting.Len() == 0 && s.done == nil && !s.closed {
		s.changed.Wait()
	}
	if s.closed {
		return 0, errors.New("read of a closed response body")
	}
	if s.waiting.Len() == 0 {
		return 0, s.done
	}
	n, err := s.waiting.Read(p)
	s.changed.Broadcast()
	return n, err
}

// Close ends the request.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	s.waiting = bytes.Buffer{}
	s.changed.Broadcast()
	stop := s.stop
	s.mu.Unlock()
	stop()
	s.cancel()
	return nil
}

// finish marks the end of the response and releases the request.
func (s *stream) finish(cause error) {
	s.mu.Lock()
	if s.done == nil {
		s.done = cause
	}
	if s.status == 0 && errors.Is(s.done, io.EOF) {
		s.start(http.StatusOK)
	}
	if s.status == 0 && !s.broken {
		s.broken = true
		close(s.started)
	}
	s.changed.Broadcast()
	stop := s.stop
	s.mu.Unlock()
	stop()
	s.cancel()
}

func (s *stream) response(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return nil, s.done
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", s.status, http.StatusText(s.status)), StatusCode: s.status,
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: s.sent, Body: s, ContentLength: -1, Request: req,
	}, nil
}

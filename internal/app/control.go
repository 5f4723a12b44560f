package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Control is what the running mend offers on its socket, to root and its own
// user only: the socket's directory is closed to everybody else.
type Control interface {
	// Status describes this process now. It must answer within a second, whatever
	// state the parts are in.
	Status(ctx context.Context) Status
	// Down ends the process: the Pods first, in their grace periods, unless
	// keepPods. It returns when everything but the process itself has ended.
	Down(ctx context.Context, keepPods bool, tell Teller) error
	// Snapshot saves the state to a new file, and returns its path; an empty path
	// takes a name below the data directory.
	Snapshot(ctx context.Context, path string) (string, error)
	// Simulate brings the simulated nodes to this number, and all of them to the
	// behaviour (YAML) unless that is empty. It returns when they are Ready.
	Simulate(ctx context.Context, nodes int, behaviour string, tell Teller) error
}

// maxSocketPath is the kernel's limit for the path of a unix socket, without the zero
// at its end: 107 on Linux, 103 on macOS.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// serveControl answers on the socket at path until ctx ends.
func serveControl(ctx context.Context, path string, control Control, log *slog.Logger) error {
	listener, err := listenUnix(path)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(control.Status(r.Context()))
	})
	mux.HandleFunc("POST /down", func(w http.ResponseWriter, r *http.Request) {
		tell := TellTo(flushing{w, http.NewResponseController(w)})
		// Going down does not stop because the one who asked went away.
		tell.Finish(control.Down(context.WithoutCancel(r.Context()), r.FormValue("keepPods") == "true", tell))
	})
	mux.HandleFunc("POST /snapshot", func(w http.ResponseWriter, r *http.Request) {
		tell := TellTo(flushing{w, http.NewResponseController(w)})
		path, err := control.Snapshot(r.Context(), r.FormValue("path"))
		if err == nil {
			tell.Note("%s", path)
		}
		tell.Finish(err)
	})
	mux.HandleFunc("POST /simulate", func(w http.ResponseWriter, r *http.Request) {
		tell := TellTo(flushing{w, http.NewResponseController(w)})
		tell.Finish(simulate(r, control, tell))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(shutdown)
	}()
	go func() {
		if err := server.Serve(listener); err != nil && ctx.Err() == nil {
			log.Error("control socket ended", "err", err)
		}
	}()
	return nil
}

// behaviourLimit bounds a behaviour file, in bytes.
const behaviourLimit = 1 << 20

// simulate reads what was asked for: the number in the query, the behaviour as the
// body.
func simulate(r *http.Request, control Control, tell Teller) error {
	nodes, err := strconv.Atoi(r.URL.Query().Get("nodes"))
	if err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	behaviour, err := io.ReadAll(io.LimitReader(r.Body, behaviourLimit))
	if err != nil {
		return err
	}
	return control.Simulate(r.Context(), nodes, string(behaviour), tell)
}

func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is longer than the %d bytes that the kernel takes: use a shorter --data-dir", path, maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	// The lock is ours, so a socket that is there belongs to a mend that died.
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// flushing sends each write on at once.
type flushing struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}

// ControlClient speaks to a running mend's socket.
func ControlClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
}

package kubeletapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// exec runs a command in a container, with its streams.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	container := r.PathValue("container")
	id, ok := s.runningContainer(r.Context(), pod, container)
	if !ok {
		s.streamError(w, fmt.Errorf("container not found (%q)", container))
		return
	}
	response, err := s.config.Runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         r.URL.Query()["command"],
		Tty:         options.TTY,
		Stdin:       options.Stdin,
		Stdout:      options.Stdout,
		Stderr:      options.Stderr,
	})
	if err != nil {
		s.streamError(w, err)
		return
	}
	s.handOn(w, r, response.Url, options)
}

// attach joins the streams of a container's own process.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	container := r.PathValue("container")
	id, ok := s.runningContainer(r.Context(), pod, container)
	if !ok {
		s.streamError(w, fmt.Errorf("container %s not found in pod %s_%s", container, pod.Name, pod.Namespace))
		return
	}
	response, err := s.config.Runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: id,
		// Whether a process has a terminal was decided when it was started.
		Tty:    hasTTY(pod, container),
		Stdin:  options.Stdin,
		Stdout: options.Stdout,
		Stderr: options.Stderr && !hasTTY(pod, container),
	})
	if err != nil {
		s.streamError(w, err)
		return
	}
	s.handOn(w, r, response.Url, options)
}

func hasTTY(pod *v1.Pod, name string) bool {
	tty := false
	for _, containers := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			tty = tty || containers[i].Name == name && containers[i].TTY
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		tty = tty || c.Name == name && c.TTY
	}
	return tty
}

// runningContainer finds the container by that name that runs now.
func (s *Server) runningContainer(ctx context.Context, pod *v1.Pod, name string) (string, bool) {
	id, _, ok := s.config.Pods.ContainerID(pod.UID, name, false)
	if !ok {
		return "", false
	}
	running, err := s.isRunning(ctx, id)
	// If the runtime does not say, the request itself will.
	return id, running || err != nil
}

// handOn gives the connection to the runtime's streaming server.
func (s *Server) handOn(w http.ResponseWriter, r *http.Request, address string, options *remotecommand.Options) {
	at, err := url.Parse(address)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "runtime gave an address that is none: %v", err)
		return
	}
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		translator.NewStreamTranslatorHandler(at, nil, 0, translator.Options{
			Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY,
		}).ServeHTTP(w, r)
		return
	}
	s.upgrade(at).ServeHTTP(w, r)
}

func (s *Server) upgrade(at *url.URL) http.Handler {
	return proxy.NewUpgradeAwareHandler(at, nil, false, true, (*responder)(s))
}

// responder answers for the proxy when it fails.
type responder Server

// Error implements proxy.ErrorResponder.
func (s *responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	s.config.Log.Warn("stream not handed on", "path", r.URL.Path, "err", err)
	code := http.StatusInternalServerError
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code = int(status.Status().Code)
	}
	refuse(w, code, "%v", err)
}

// portForward connects to ports of a Pod.
func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	tunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	options := &portforward.V4Options{}
	if !tunnel {
		var err error
		if options, err = portforward.NewV4Options(r); err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
	}
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	sandbox, ok := s.config.Pods.SandboxID(pod.UID)
	if !ok {
		s.streamError(w, fmt.Errorf("pod not found (%q)", pod.Name+"_"+pod.Namespace))
		return
	}
	response, err := s.config.Runtime.PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox, Port: options.Ports})
	if err != nil {
		s.streamError(w, err)
		return
	}
	at, err := url.Parse(response.Url)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "runtime gave an address that is none: %v", err)
		return
	}
	if tunnel {
		translator.NewTunnelingHandler(s.upgrade(at)).ServeHTTP(w, r)
		return
	}
	s.upgrade(at).ServeHTTP(w, r)
}

func (s *Server) streamError(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := streaming.WriteError(err, w); err != nil {
		s.config.Log.Debug("answer not written", "err", err)
	}
}

// run runs a command without streams and answers with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	pod, ok := s.pod(w, r)
	if !ok {
		return
	}
	container := r.PathValue("container")
	id, ok := s.runningContainer(r.Context(), pod, container)
	if !ok {
		refuse(w, http.StatusInternalServerError, "container not found (%q)", container)
		return
	}
	stdout, stderr, err := s.config.Runtime.ExecSync(r.Context(), id, strings.Split(r.URL.Query().Get("cmd"), " "), 0)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return
		}
		refuse(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.Header().Set("Content-Type", "application/json") // as kubelet has it, whatever it is
	s.write(w, append(stdout, stderr...))
}

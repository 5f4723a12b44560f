package kubeletapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core/v1/validation"

	"mend/internal/agent/logs"
)

const logBuffer = 32 << 10

// containerLogs streams a container's log. What goes wrong before the first byte is an
// error with a code; later it can only be shown at the end of the text.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	options, code, err := logOptions(r)
	if err != nil {
		refuse(w, code, "%v", err)
		return
	}
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	pod, ok := s.config.Pods.PodByName(namespace, name)
	if !ok {
		refuse(w, http.StatusNotFound, "pod %q does not exist", name)
		return
	}
	if !hasContainer(pod, container) {
		refuse(w, http.StatusNotFound, "container %q not found in pod %q", container, name)
		return
	}
	request, err := s.logRequest(r.Context(), pod, container, options)
	if err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	out := newTextAnswer(w)
	request.Flush = out.flush
	stdout, stderr := io.Writer(out), io.Writer(out)
	if options.Stream != nil && *options.Stream == v1.LogStreamStdout {
		stderr = nil
	}
	if options.Stream != nil && *options.Stream == v1.LogStreamStderr {
		stdout = nil
	}
	err = s.reader.Read(r.Context(), request, stdout, stderr)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.config.Log.Warn("log not read to its end", "pod", name, "namespace", namespace, "container", container, "err", err)
		out.fail(err)
	}
}

func logOptions(r *http.Request) (options *v1.PodLogOptions, code int, err error) {
	query := r.URL.Query()
	if tail := query.Get("tail"); tail != "" { // of old clients
		query["tailLines"] = []string{tail}
		if tail == "all" {
			delete(query, "tailLines")
		}
	}
	options = &v1.PodLogOptions{}
	if err := legacyscheme.ParameterCodec.DecodeParameters(query, v1.SchemeGroupVersion, options); err != nil {
		return nil, http.StatusBadRequest, errors.New(`{"message": "Unable to decode query."}`)
	}
	options.TypeMeta = metav1.TypeMeta{}
	if options.Stream == nil {
		all := v1.LogStreamAll
		options.Stream = &all
	}
	if errs := validation.ValidatePodLogOptions(options); len(errs) > 0 {
		return nil, http.StatusUnprocessableEntity, errors.New(`{"message": "Invalid request."}`)
	}
	return options, 0, nil
}

func hasContainer(pod *v1.Pod, name string) bool {
	found := false
	podutil.VisitContainers(&pod.Spec, podutil.AllContainers, func(c *v1.Container, _ podutil.ContainerType) bool {
		found = c.Name == name
		return !found
	})
	return found
}

// logRequest finds the file, or says in kubelet's words why there is none.
func (s *Server) logRequest(ctx context.Context, pod *v1.Pod, container string, options *v1.PodLogOptions) (logs.Request, error) {
	id, path, ok := s.config.Pods.ContainerID(pod.UID, container, options.Previous)
	if !ok {
		return logs.Request{}, whyNoLog(pod, container, options.Previous)
	}
	if path == "" {
		response, err := s.config.Runtime.ContainerStatus(ctx, id, false)
		if err != nil || response.GetStatus().GetLogPath() == "" {
			return logs.Request{}, fmt.Errorf("unable to retrieve container logs for containerd://%s", id)
		}
		path = response.Status.LogPath
	}
	request := logs.RequestFor(options, s.config.Clock.Now())
	request.Path, request.Missing = path, logs.MakeIn(s.config.Runtime, id)
	request.Running = func(ctx context.Context) (bool, error) { return s.isRunning(ctx, id) }
	if watcher, ok := s.config.Pods.(EndWatcher); ok {
		request.Ended = watcher.Ended(id)
	}
	return request, nil
}

// isRunning takes a runtime that cannot be reached for one whose containers go on, and
// a container that is gone for one that has ended.
func (s *Server) isRunning(ctx context.Context, id string) (bool, error) {
	response, err := s.config.Runtime.ContainerStatus(ctx, id, false)
	switch {
	case status.Code(err) == codes.Unavailable:
		return true, nil
	case status.Code(err) == codes.NotFound:
		return false, nil
	case err != nil:
		return false, err
	}
	return response.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, nil
}

// whyNoLog explains by the container's status why it has no log.
func whyNoLog(pod *v1.Pod, container string, previous bool) error {
	statuses := append(append(append([]v1.ContainerStatus{}, pod.Status.ContainerStatuses...),
		pod.Status.InitContainerStatuses...), pod.Status.EphemeralContainerStatuses...)
	for _, s := range statuses {
		if s.Name != container {
			continue
		}
		waiting := s.State.Waiting
		switch {
		case previous:
			return fmt.Errorf("previous terminated container %q in pod %q not found", container, pod.Name)
		case s.State.Terminated != nil, s.LastTerminationState.Terminated != nil:
			return fmt.Errorf("container %q in pod %q is terminated", container, pod.Name)
		case waiting == nil:
			return fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", container, pod.Name)
		case waiting.Reason == "ErrImagePull":
			return fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", container, pod.Name)
		case waiting.Reason == "ImagePullBackOff":
			return fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image", container, pod.Name)
		default:
			return fmt.Errorf("container %q in pod %q is waiting to start: %v", container, pod.Name, waiting.Reason)
		}
	}
	return fmt.Errorf("container %q in pod %q is not available", container, pod.Name)
}

// textAnswer collects text and sends it in large pieces, or when it is flushed.
type textAnswer struct {
	http    http.ResponseWriter
	buffer  *bufio.Writer
	started bool
}

func newTextAnswer(w http.ResponseWriter) *textAnswer {
	return &textAnswer{http: w, buffer: bufio.NewWriterSize(w, logBuffer)}
}

func (t *textAnswer) Write(text []byte) (int, error) {
	t.begin()
	return t.buffer.Write(text)
}

func (t *textAnswer) begin() {
	if !t.started {
		t.started = true
		t.http.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
}

// flush sends what there is, at first the header alone. What fails here fails again
// with the next write.
func (t *textAnswer) flush() {
	t.begin()
	_ = t.buffer.Flush()
	_ = http.NewResponseController(t.http).Flush()
}

func (t *textAnswer) fail(err error) {
	if !t.started {
		refuse(t.http, http.StatusBadRequest, "%v", err)
		return
	}
	fmt.Fprintf(t.buffer, "%v", err)
	t.flush()
}

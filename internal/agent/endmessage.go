package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/agent/logs"
	"mend/internal/agent/podspec"
)

// Bounds on a termination message, as the API documents them.
const (
	maxMessage    = 4096 // bytes of the file
	maxLogMessage = 2048 // bytes of the log's last lines
	maxLogLines   = 80
	readTimeout   = 10 * time.Second
)

// endMessages reads what a container left as its termination message: the last
// bytes of its file, or, where that is empty, the container failed and its policy
// says so, the last lines of its log.
func (a *Agent) endMessage(ended *runtimeapi.ContainerStatus) string {
	said, err := messageFile(ended)
	if err != nil {
		return err.Error()
	}
	policy := v1.TerminationMessagePolicy(ended.Annotations[podspec.TerminationMessagePolicy])
	if said != "" || policy != v1.TerminationMessageFallbackToLogsOnError || ended.ExitCode == 0 || ended.Reason == "ContainerCannotRun" {
		return said
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var out bytes.Buffer
	lines := int64(maxLogLines)
	if err := a.logs.Read(ctx, logs.Request{Path: ended.LogPath, Tail: &lines, Missing: logs.MakeIn(a.cfg.Runtime, ended.Id)}, &out, &out); err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	text := out.Bytes()
	return string(text[max(0, len(text)-maxLogMessage):])
}

func messageFile(ended *runtimeapi.ContainerStatus) (string, error) {
	path := ended.Annotations[podspec.TerminationMessagePathAnnotation]
	if path == "" {
		return "", nil
	}
	if !filepath.IsAbs(path) {
		path = "/" + path
	}
	for _, m := range ended.Mounts {
		if m.ContainerPath != path {
			continue
		}
		text, err := lastBytes(m.HostPath, maxMessage)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("Error on reading termination log %s: %w", m.HostPath, err)
		}
		return text, nil
	}
	return "", nil
}

func lastBytes(path string, n int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", nil
	}
	if _, err := f.Seek(max(0, info.Size()-n), io.SeekStart); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, n))
	return string(text), err
}

// rotateLogs keeps the logs of running containers small.
func (a *Agent) rotateLogs(ctx context.Context) {
	rotator := &logs.Rotator{Runtime: a.cfg.Runtime, Clock: a.cfg.Clock, Log: a.cfg.Log}
	tick := a.cfg.Clock.NewTicker(rotatePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		for _, p := range a.snapshot() {
			for id, path := range a.runningLogs(p) {
				if err := rotator.Check(ctx, id, path); err != nil && ctx.Err() == nil {
					a.cfg.Log.Warn("cannot rotate a log", "path", path, "err", err)
				}
			}
		}
	}
}

func (a *Agent) runningLogs(p *pod) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	paths := map[string]string{}
	for _, c := range p.state.Containers {
		if c.Phase == "running" && c.LogPath != "" {
			paths[c.ID] = c.LogPath
		}
	}
	return paths
}

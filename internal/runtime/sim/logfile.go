package sim

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxLogLine is where containerd cuts a long line into partial ones, in bytes.
const maxLogLine = 16 << 10

// maxHeldLog is how much of a container's log, in bytes, is kept in memory until
// somebody reads it. Most containers are simulated in thousands and say one line that
// nobody reads: to make a directory and a file for it costs more than their start.
const maxHeldLog = 4 << 10

// logTo appends output to the container's log in CRI format. The file is open
// only while it is written: thousands of containers hold no descriptors, and a
// rotated file is never written to again.
func (c *container) logTo(stream runtimeapi.LogStreamType, output []byte, now time.Time) error {
	if c.logPath == "" || len(output) == 0 {
		return nil
	}
	c.logMu.Lock()
	defer c.logMu.Unlock()
	lines := criLines(stream, output, now)
	if !c.logMade && len(c.heldLog)+len(lines) <= maxHeldLog {
		c.heldLog = append(c.heldLog, lines...)
		return nil
	}
	return c.writeLog(lines)
}

// writeLog appends what was held and then lines to the file. Callers hold logMu.
func (c *container) writeLog(lines []byte) error {
	file, err := openLog(c.logPath)
	if err != nil {
		return err
	}
	c.logMade = true
	if _, err := file.Write(append(c.heldLog, lines...)); err != nil {
		file.Close()
		return err
	}
	c.heldLog = nil
	return file.Close()
}

func openLog(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if !os.IsNotExist(err) {
		return file, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
}

// criLines formats output as lines "time stream tag text". Text without a
// newline at its end is a partial line (P), as is all but the last part of a
// line that is too long.
func criLines(stream runtimeapi.LogStreamType, output []byte, now time.Time) []byte {
	var formatted bytes.Buffer
	stamp := now.UTC().Format(time.RFC3339Nano)
	for len(output) > 0 {
		end := bytes.IndexByte(output, '\n')
		tag, text, rest := runtimeapi.LogTagFull, output, []byte(nil)
		switch {
		case end < 0 && len(output) <= maxLogLine:
			tag = runtimeapi.LogTagPartial
		case end < 0 || end > maxLogLine:
			tag, text, rest = runtimeapi.LogTagPartial, output[:maxLogLine], output[maxLogLine:]
		default:
			text, rest = output[:end], output[end+1:]
		}
		formatted.WriteString(stamp + " " + string(stream) + " " + string(tag) + " ")
		formatted.Write(text)
		formatted.WriteByte('\n')
		output = rest
	}
	return formatted.Bytes()
}

// MakeContainerLog makes the log's file, with what was held in memory. The agent asks for
// it when somebody reads the log.
func (r *Runtime) MakeContainerLog(id string) error {
	r.mu.Lock()
	c := r.containers[id]
	r.mu.Unlock()
	switch {
	case c == nil:
		return notFound(id)
	case c.logPath == "":
		return nil
	}
	c.logMu.Lock()
	defer c.logMu.Unlock()
	if err := c.writeLog(nil); err != nil {
		return fmt.Errorf("failed to create container log: %w", err)
	}
	return nil
}

// ReopenContainerLog has nothing to do for a container that runs: whatever it writes next
// opens the file anew.
func (r *Runtime) ReopenContainerLog(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	switch {
	case c == nil:
		return notFound(id)
	case c.state != runtimeapi.ContainerState_CONTAINER_RUNNING:
		return status.Error(codes.Unknown, "container is not running")
	}
	return nil
}

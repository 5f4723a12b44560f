package sim

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// streams is the streaming server, started when first asked for.
type streams struct{}

func (s *streams) close() {}

func isShellProgram(argv []string) bool {
	if len(argv) == 0 {
		return false
	}
	switch path.Base(argv[0]) {
	case "sh", "bash", "sleep", "tail", "cat":
		return true
	}
	return false
}

// begin writes what the behaviour says and starts the container's program.
func (r *Runtime) begin(c *container) {
	now := r.clock.Now()
	if len(c.traits.log) > 0 {
		text := strings.Join(c.traits.log, "\n") + "\n"
		if err := c.logTo(runtimeapi.Stdout, []byte(text), now); err != nil {
			r.log.Warn("simulated log not written", "path", c.logPath, "err", err)
		}
	}
}

// ExecSync runs a command.
func (r *Runtime) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	if len(cmd) > 0 && cmd[0] == "false" {
		return nil, nil, utilexec.CodeExitError{Err: fmt.Errorf("command '%s' exited with %d: %s", strings.Join(cmd, " "), 1, ""), Code: 1}
	}
	return nil, nil, nil
}

// Exec is not there yet.
func (r *Runtime) Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return nil, unimplemented("Exec")
}

// Attach is not there yet.
func (r *Runtime) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return nil, unimplemented("Attach")
}

// PortForward is not there yet.
func (r *Runtime) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return nil, unimplemented("PortForward")
}

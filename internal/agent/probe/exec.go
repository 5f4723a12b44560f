package probe

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	remote "k8s.io/cri-client/pkg"
)

// exec runs a command in the container. The runtime kills it at the timeout.
func (p *prober) exec(ctx context.Context, action *v1.ExecAction, target Target, timeout time.Duration) attempt {
	command := expandStatic(action.Command, target.Container.Env)
	stdout, stderr, err := p.execer.ExecSync(ctx, target.ContainerID, command, timeout)
	output := string(cut(append(stdout, stderr...)))
	if err == nil {
		return succeeded(output)
	}
	if code, exited := isExit(err); exited {
		if code == 0 {
			return succeeded(output)
		}
		return failed(output)
	}
	if errors.Is(err, remote.ErrCommandTimedOut) {
		return failed(err.Error())
	}
	return errored(err)
}

func cut(output []byte) []byte {
	if len(output) > maxOutput {
		return output[:maxOutput]
	}
	return output
}

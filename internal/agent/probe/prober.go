package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-base/version"

	"mend/internal/agent/podspec"
)

const (
	// maxOutput is how much of an answer is kept, in bytes.
	maxOutput = 10 << 10
	// maxTries is how often an attempt that cannot be made is tried.
	maxTries = 3
)

// attempt is one try of a probe.
type attempt struct {
	result Result
	output string
	reason string // of the event that it deserves, if any
	err    error  // why it could not be made
	state  string // what kubelet then calls its result
}

func succeeded(output string) attempt { return attempt{result: Success, output: output} }

func failed(output string) attempt {
	return attempt{result: Failure, output: output, reason: ReasonUnhealthy}
}

func warned(output string) attempt {
	return attempt{result: Success, output: output, reason: ReasonWarning}
}

func errored(err error) attempt {
	return attempt{err: err, state: "unknown", reason: ReasonUnhealthy}
}

// eventMessage is kubelet's text for the attempt.
func (a attempt) eventMessage(kind Kind) string {
	switch {
	case a.err != nil:
		return fmt.Sprintf("%s probe errored and resulted in %s state: %v", kind, a.state, a.err)
	case a.reason == ReasonWarning:
		return fmt.Sprintf("%s probe warning: %s", kind, a.output)
	default:
		return fmt.Sprintf("%s probe failed: %s", kind, a.output)
	}
}

// prober makes attempts. It holds no state of any probe.
type prober struct {
	execer Execer
	http   *httpProber
	dial   dialFunc
	log    *slog.Logger
}

func newProber(options Options) *prober {
	return &prober{execer: newPatient(options.Execer, options.Clock), http: newHTTPProber(options.Dial), dial: options.Dial, log: options.Log}
}

// userAgent is what probes call themselves: kube-probe/1.37.
func userAgent() string {
	info := version.Get()
	return fmt.Sprintf("kube-probe/%s.%s", info.Major, info.Minor)
}

// attempt tries again at once, a few times, when it cannot be made.
func (p *prober) attempt(ctx context.Context, kind Kind, spec *v1.Probe, target Target) (made attempt) {
	defer func() {
		if cause := recover(); cause != nil {
			p.log.Error("panic in probe", "pod", target.Pod.Name, "container", target.Container.Name,
				"kind", kind.String(), "panic", cause, "stack", string(debug.Stack()))
			made = errored(fmt.Errorf("panic: %v", cause))
		}
	}()
	for range maxTries {
		made = p.try(ctx, spec, target)
		if made.err == nil || ctx.Err() != nil {
			break
		}
	}
	return made
}

func (p *prober) try(ctx context.Context, spec *v1.Probe, target Target) attempt {
	timeout := time.Duration(max(spec.TimeoutSeconds, 1)) * time.Second
	host := target.PodIP
	if host == "" {
		host = target.HostIP
	}
	switch {
	case spec.Exec != nil:
		return p.exec(ctx, spec.Exec, target, timeout)
	case spec.HTTPGet != nil:
		return p.http.probe(ctx, spec.HTTPGet, target.Container, host, timeout)
	case spec.TCPSocket != nil:
		if spec.TCPSocket.Host != "" {
			host = spec.TCPSocket.Host
		}
		return p.tcp(ctx, spec.TCPSocket.Port, target.Container, host, timeout)
	case spec.GRPC != nil:
		return p.grpc(ctx, spec.GRPC, host, timeout)
	}
	return errored(fmt.Errorf("missing probe handler for %s_%s(%s):%s",
		target.Pod.Name, target.Pod.Namespace, target.Pod.UID, target.Container.Name))
}

// portOf resolves a number or the name of one of the container's ports.
func portOf(port intstr.IntOrString, container *v1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		number = -1
		for _, declared := range container.Ports {
			if declared.Name == port.StrVal {
				number = int(declared.ContainerPort)
				break
			}
		}
		if number < 0 {
			return 0, fmt.Errorf("port %q not found", port.StrVal)
		}
	}
	if number <= 0 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %d", number)
	}
	return number, nil
}

// expandStatic replaces $(NAME) by values that the container's spec has itself.
// References to what only the container's environment has stay as they are.
func expandStatic(words []string, env []v1.EnvVar) []string {
	expanded := make([]string, len(words))
	for i, text := range words {
		expanded[i] = podspec.Expand(text, func(name string) (string, bool) {
			for i := len(env) - 1; i >= 0; i-- {
				if env[i].Name == name {
					return env[i].Value, true
				}
			}
			return "", false
		})
	}
	return expanded
}

// isExit says that a command ran and ended with a code.
func isExit(err error) (code int, ok bool) {
	var exit interface{ ExitStatus() int }
	if errors.As(err, &exit) {
		return exit.ExitStatus(), true
	}
	return 0, false
}

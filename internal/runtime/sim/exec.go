package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"
)

// isServer says that the container runs until it is stopped, and listens.
func (c *container) isServer() bool { return !isShellProgram(c.argv) }

// begin writes what the behaviour says and starts the container's program. It
// runs on the schedule's goroutine.
func (r *Runtime) begin(c *container) {
	if c.traits.listen.Sample && c.isServer() {
		r.print(c, fmt.Sprintf("web %s on %s: serving on ports 80 and 8080", c.version(), c.podName()))
	}
	if len(c.traits.log) > 0 {
		r.print(c, strings.Join(c.traits.log, "\n"))
	}
	if c.isServer() || c.traits.exit != nil || c.config.Stdin && isInteractive(c.argv) {
		return // ends by its behaviour, or through who attaches
	}
	program, err := r.newShell(c, c.argv, strings.NewReader(""),
		r.output(c, runtimeapi.Stdout), r.output(c, runtimeapi.Stderr))
	if err != nil {
		fmt.Fprintf(r.output(c, runtimeapi.Stderr), "%s: %v\n", c.argv[0], err)
		r.end(c, ending{code: 2})
		return
	}
	c.program = program
	r.advance(c)
}

// advance lets the program go on to its next sleep or its end.
func (r *Runtime) advance(c *container) {
	pause, done := c.program.run()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case c.state != runtimeapi.ContainerState_CONTAINER_RUNNING:
	case done:
		r.finish(c, ending{code: int32(c.program.status & 0xff)})
	case pause < forever:
		r.later(c, "program", pause, func() { r.advance(c) })
	}
}

// errNoProgram says that the image lacks a program.
var errNoProgram = errors.New("executable file not found in $PATH")

// newShell makes a command line ready to run in the container.
func (r *Runtime) newShell(c *container, argv []string, stdin io.Reader, stdout, stderr io.Writer) (*shell, error) {
	if !isShellProgram(argv) {
		return nil, errNoProgram
	}
	made := &shell{
		env:   c.environment(),
		files: &files{mounts: c.config.Mounts, own: &c.files, shared: &c.box.files},
		stdin: stdin, stdout: stdout, stderr: stderr,
		host: r.hostOf(c),
	}
	if !isShellName(argv[0]) {
		words := make([]word, 0, len(argv))
		for _, arg := range argv {
			words = append(words, literal(arg))
		}
		made.steps = []step{{kind: stepRun, pipe: []simple{{words: words}}}}
		return made, nil
	}
	if isInteractive(argv) {
		return made, nil
	}
	steps, args, err := shellSteps(argv[1:], stdin, made.files)
	made.steps, made.args = steps, args
	return made, err
}

func isShellName(name string) bool {
	return slices.Contains([]string{"sh", "bash", "ash"}, path.Base(name))
}

// isInteractive says that the command line is a shell that reads its commands
// from standard input.
func isInteractive(argv []string) bool {
	if len(argv) == 0 || !isShellName(argv[0]) {
		return false
	}
	given, rest := flags(argv[1:])
	return len(rest) == 0 && !strings.Contains(given, "c")
}

func (c *container) environment() map[string]string {
	env := map[string]string{
		"PATH":     "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOSTNAME": c.box.config.Hostname,
		"HOME":     "/root",
	}
	if c.traits.listen.Sample {
		_, env["VERSION"] = splitTag(c.image.name)
	}
	for _, pair := range c.config.Envs {
		env[pair.Key] = string(pair.Value)
	}
	return env
}

func (r *Runtime) hostOf(c *container) *host {
	return &host{
		now: r.clock.Now,
		kill: func(pid int, signal string) error {
			if pid != 1 {
				return fmt.Errorf("(%d) - No such process", pid)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			// Linux keeps process 1 of a container from a KILL that comes from
			// inside.
			if signal != "KILL" && signal != "9" && signal != "0" && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
				r.terminate(c)
			}
			return nil
		},
		curl: func(method, url string, timeout time.Duration) (int, []byte, error) {
			return r.fetch(c, method, url, timeout)
		},
	}
}

// runToEnd runs a shell with real pauses. It returns the exit code.
func (r *Runtime) runToEnd(ctx context.Context, program *shell) (int, error) {
	for {
		pause, done := program.run()
		if done {
			return program.status & 0xff, nil
		}
		if err := r.pause(ctx, pause); err != nil {
			return 0, err
		}
	}
}

// running returns the container if it can execute commands.
func (r *Runtime) running(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound(id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.Unknown, "failed to exec in container: container is in %s state", c.state)
	}
	return c, nil
}

// ExecSync runs a command by the container's rules, or else as one of the
// commands that the simulation knows. A code other than 0 is a
// utilexec.CodeExitError; a timeout is remote.ErrCommandTimedOut, as the CRI
// client has it. Zero means no timeout.
func (r *Runtime) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	c, err := r.running(id)
	if err != nil {
		return nil, nil, err
	}
	limited, cancel := r.withTimeout(ctx, timeout)
	defer cancel()
	var out, errOut bytes.Buffer
	code, err := r.execute(limited, c, cmd, strings.NewReader(""), &out, &errOut, nil)
	switch {
	case ctx.Err() != nil:
		return nil, nil, contextStatus(ctx.Err())
	case limited.Err() != nil:
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(cmd, " "), timeout)
	case err != nil:
		return nil, nil, err
	case code != 0:
		return out.Bytes(), errOut.Bytes(), utilexec.CodeExitError{
			Err:  fmt.Errorf("command '%s' exited with %d: %s", strings.Join(cmd, " "), code, errOut.String()),
			Code: code,
		}
	}
	return out.Bytes(), errOut.Bytes(), nil
}

// withTimeout is context.WithTimeout on the runtime's clock.
func (r *Runtime) withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithCancel(ctx)
	if timeout <= 0 {
		return limited, cancel
	}
	takeBack := r.schedule.After(timeout, cancel)
	return limited, func() {
		takeBack()
		cancel()
	}
}

// execute runs one command line in a running container. A shell that waits for a
// line calls ready, which may be nil.
func (r *Runtime) execute(ctx context.Context, c *container, cmd []string, stdin io.Reader, stdout, stderr io.Writer, ready func()) (int, error) {
	line := strings.Join(cmd, " ")
	for i := range c.traits.exec {
		rule := &c.traits.exec[i]
		if !globMatch(rule.Command, line) {
			continue
		}
		if err := r.pause(ctx, rule.Delay.Duration); err != nil {
			return 0, err
		}
		io.WriteString(stdout, rule.Stdout)
		io.WriteString(stderr, rule.Stderr)
		return int(rule.Code), nil
	}
	program, err := r.newShell(c, cmd, stdin, stdout, stderr)
	switch {
	case errors.Is(err, errNoProgram):
		name := ""
		if len(cmd) > 0 {
			name = cmd[0]
		}
		return 0, status.Errorf(codes.Unknown, "failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: unable to start container process: exec: %q: %v", name, err)
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", cmd[0], err)
		return 2, nil
	case isInteractive(cmd):
		return r.converse(ctx, program, ready)
	}
	return r.runToEnd(ctx, program)
}

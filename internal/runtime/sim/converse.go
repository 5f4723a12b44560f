package sim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// terminal adapts the caller's streams: none may be nil afterwards, and on a
// terminal both outputs are one, with the line endings and the echo that a
// terminal has.
func terminal(in io.Reader, out, errOut io.WriteCloser, tty bool) (stdin io.Reader, stdout, stderr io.Writer) {
	stdin, stdout, stderr = in, writerOrNil(out), writerOrNil(errOut)
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	if stdout == nil {
		stdout = io.Discard
	}
	if tty {
		stdout = crlf{stdout}
		return &lineDiscipline{in: stdin, echo: stdout}, stdout, stdout
	}
	if stderr == nil {
		stderr = io.Discard
	}
	return stdin, stdout, stderr
}

// crlf writes a carriage return before each newline.
type crlf struct{ to io.Writer }

func (c crlf) Write(text []byte) (int, error) {
	if _, err := io.WriteString(c.to, strings.ReplaceAll(string(text), "\n", "\r\n")); err != nil {
		return 0, err
	}
	return len(text), nil
}

const (
	interrupt = 0x03 // ^C
	endOfFile = 0x04 // ^D
	backspace = 0x08
	del       = 0x7f
)

// lineDiscipline gives a reader whole lines of what is typed, and echoes it.
type lineDiscipline struct {
	in    io.Reader
	echo  io.Writer
	typed []byte // the line so far
	ready []byte // lines not read yet
	ended bool
}

func (l *lineDiscipline) Read(into []byte) (int, error) {
	key := make([]byte, 256)
	for len(l.ready) == 0 {
		if l.ended {
			return 0, io.EOF
		}
		n, err := l.in.Read(key)
		for _, b := range key[:n] {
			l.press(b)
		}
		if err != nil {
			l.ended = true
			l.ready = append(l.ready, l.typed...)
		}
	}
	n := copy(into, l.ready)
	l.ready = l.ready[n:]
	return n, nil
}

func (l *lineDiscipline) press(b byte) {
	switch b {
	case '\r', '\n':
		io.WriteString(l.echo, "\n")
		l.ready = append(append(l.ready, l.typed...), '\n')
		l.typed = nil
	case backspace, del:
		if len(l.typed) > 0 {
			l.typed = l.typed[:len(l.typed)-1]
			io.WriteString(l.echo, "\b \b")
		}
	case interrupt:
		io.WriteString(l.echo, "^C\n")
		l.typed = nil
		l.ready = append(l.ready, '\n')
	case endOfFile:
		if len(l.typed) == 0 {
			l.ended = true
		}
	default:
		l.typed = append(l.typed, b)
		l.echo.Write([]byte{b})
	}
}

// prompt returns what shows that the shell waits for a line; nil without a
// terminal.
func prompt(tty bool, stdout io.Writer) func() {
	if !tty {
		return nil
	}
	return func() { io.WriteString(stdout, "/ # ") }
}

// converse runs a shell that reads its commands line by line, until they end or
// one of them is exit. A command that needs more lines gets them.
func (r *Runtime) converse(ctx context.Context, program *shell, ready func()) (int, error) {
	lines := bufio.NewReader(program.stdin)
	program.stdin = lines
	pending := ""
	for {
		if ready != nil {
			ready()
		}
		line, readErr := lines.ReadString('\n')
		pending += line
		steps, err := compile(pending)
		if errors.Is(err, errEndOfScript) && readErr == nil {
			continue
		}
		pending = ""
		if err != nil {
			fmt.Fprintf(program.stderr, "sh: %v\n", err)
			program.status, steps = 2, nil
		}
		program.steps, program.at, program.loops = steps, 0, nil
		code, err := r.runToEnd(ctx, program)
		if err != nil {
			return 0, err
		}
		if program.exited || readErr != nil {
			return code, nil
		}
	}
}

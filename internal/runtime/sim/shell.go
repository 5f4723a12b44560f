package sim

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"
)

// forever is a sleep that nothing waits for.
const forever = 100 * 365 * 24 * time.Hour

// maxSteps bounds what a script does without sleeping, and spin is the sleep
// that is put in when it goes on: a loop without a sleep must not hold a
// processor for ever.
const (
	maxSteps = 10_000
	spin     = time.Second
)

// shell runs a compiled script until it ends or sleeps. It is used by one
// goroutine at a time.
type shell struct {
	steps  []step
	at     int
	status int
	exited bool
	loops  [][]string // what the for loops have left
	args   []string   // $0, $1, …

	env    map[string]string
	files  *files
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	host   *host
}

// host is what commands may ask of the world outside their process.
type host struct {
	now  func() time.Time
	kill func(pid int, signal string) error
	curl func(method, url string, timeout time.Duration) (status int, body []byte, err error)
}

// run goes on until the script ends (done), or sleeps for the duration returned.
func (s *shell) run() (sleep time.Duration, done bool) {
	for count := 0; s.at < len(s.steps) && !s.exited; count++ {
		if count == maxSteps {
			return spin, false
		}
		if sleep := s.step(); sleep > 0 {
			return sleep, false
		}
	}
	return 0, true
}

func (s *shell) step() time.Duration {
	current := &s.steps[s.at]
	s.at++
	switch current.kind {
	case stepRun:
		return s.pipeline(current)
	case stepJump:
		s.at = current.target
	case stepJumpOK:
		if s.status == 0 {
			s.at = current.target
		}
	case stepJumpFail:
		if s.status != 0 {
			s.at = current.target
		}
	case stepForInit:
		s.loops = append(s.loops, s.expandAll(current.words))
	case stepForNext:
		s.forNext(current)
	case stepClear:
		s.status = 0
	}
	return 0
}

func (s *shell) forNext(current *step) {
	last := len(s.loops) - 1
	if len(s.loops[last]) == 0 {
		s.loops = s.loops[:last]
		s.at = current.target
		return
	}
	s.env[current.name] = s.loops[last][0]
	s.loops[last] = s.loops[last][1:]
}

// pipeline runs the commands one after the other, each with the output of the
// one before as its input. A sleep counts if the last command sleeps.
func (s *shell) pipeline(current *step) time.Duration {
	var sleep time.Duration
	input := s.stdin
	for i := range current.pipe {
		output := s.stdout
		var between bytes.Buffer
		if i < len(current.pipe)-1 {
			output = &between
		}
		sleep = s.simple(&current.pipe[i], input, output)
		input = &between
	}
	if current.negate {
		if s.status == 0 {
			s.status = 1
		} else {
			s.status = 0
		}
	}
	return sleep
}

func (s *shell) simple(command *simple, in io.Reader, out io.Writer) time.Duration {
	argv := s.expandAll(command.words)
	for len(argv) > 0 {
		name, value, assigns := strings.Cut(argv[0], "=")
		if !assigns || !isName(name) {
			break
		}
		s.env[name] = value
		argv = argv[1:]
		s.status = 0
	}
	if len(argv) == 0 {
		return 0
	}
	call := &call{shell: s, args: argv[1:], in: in, out: out, err: s.stderr}
	finish, err := s.redirect(command, call)
	if err != nil {
		fmt.Fprintf(s.stderr, "sh: %v\n", err)
		s.status = 1
		return 0
	}
	sleep := s.invoke(argv[0], call)
	if err := finish(); err != nil {
		fmt.Fprintf(s.stderr, "sh: %v\n", err)
		s.status = 1
	}
	return sleep
}

func isName(text string) bool {
	for i := range len(text) {
		if !isNameByte(text[i], i == 0) {
			return false
		}
	}
	return text != ""
}

// redirect sets the call's streams; finish writes what went into files.
func (s *shell) redirect(command *simple, c *call) (finish func() error, err error) {
	if command.in != nil {
		content, err := s.files.read(s.expand(command.in))
		if err != nil {
			return nil, err
		}
		c.in = bytes.NewReader(content)
	}
	stdout := c.out
	var pending []func() error
	into := func(target redirect) io.Writer {
		name, buffer := s.expand(target.file), &bytes.Buffer{}
		pending = append(pending, func() error { return s.files.write(name, buffer.Bytes(), target.add) })
		return buffer
	}
	switch {
	case command.out.stderr:
		c.out = s.stderr
	case command.out.file != nil:
		c.out = into(command.out)
		stdout = c.out
	}
	switch {
	case command.err.stdout:
		c.err = stdout
	case command.err.file != nil:
		c.err = into(command.err)
	}
	return func() error {
		for _, write := range pending {
			if err := write(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// invoke runs a command by name; paths such as /bin/echo count by their base.
func (s *shell) invoke(name string, c *call) time.Duration {
	command, known := commands[path.Base(name)]
	if !known {
		fmt.Fprintf(c.err, "sh: %s: not found\n", name)
		s.status = 127
		return 0
	}
	var sleep time.Duration
	s.status, sleep = command(c)
	return sleep
}

func (s *shell) expandAll(words []word) []string {
	expanded := make([]string, 0, len(words))
	for _, w := range words {
		text := s.expand(w)
		switch {
		case len(w) == 1 && !w[0].quoted && w[0].kind != partText:
			// An unquoted expansion may be several words, or none.
			expanded = append(expanded, strings.Fields(text)...)
		default:
			expanded = append(expanded, text)
		}
	}
	return expanded
}

func (s *shell) expand(w word) string {
	var text strings.Builder
	for _, p := range w {
		switch p.kind {
		case partVariable:
			text.WriteString(s.variable(p.text))
		case partCommand:
			text.WriteString(s.substitute(p.text))
		case partArithmetic:
			text.WriteString(strconv.Itoa(s.calculate(p.text)))
		default:
			text.WriteString(p.text)
		}
	}
	return text.String()
}

func (s *shell) variable(name string) string {
	name, fallback, _ := strings.Cut(name, ":-")
	value := ""
	switch index, err := strconv.Atoi(name); {
	case name == "?":
		return strconv.Itoa(s.status)
	case name == "$":
		return "1"
	case name == "#":
		return strconv.Itoa(max(len(s.args)-1, 0))
	case name == "@" || name == "*":
		if len(s.args) > 0 {
			return strings.Join(s.args[1:], " ")
		}
	case err == nil && index < len(s.args):
		value = s.args[index]
	default:
		value = s.env[name]
	}
	if value == "" {
		return fallback
	}
	return value
}

// substitute is $(…): the output without newlines at its end. Sleeps are skipped.
func (s *shell) substitute(script string) string {
	steps, err := compile(script)
	if err != nil {
		fmt.Fprintf(s.stderr, "sh: %v\n", err)
		s.status = 2
		return ""
	}
	var output bytes.Buffer
	inner := *s
	inner.steps, inner.at, inner.loops, inner.stdout = steps, 0, nil, &output
	for range maxSteps {
		if _, done := inner.run(); done {
			break
		}
	}
	s.status = inner.status
	return strings.TrimRight(output.String(), "\n")
}

// calculate is $((…)): numbers and names joined by + - * / %, from left to right.
func (s *shell) calculate(expression string) int {
	total, operator := 0, byte('+')
	for rest := strings.TrimSpace(expression); rest != ""; {
		end := strings.IndexAny(rest[1:], "+-*/% ") + 1
		if end == 0 {
			end = len(rest)
		}
		total = apply(total, operator, s.number(rest[:end]))
		rest = strings.TrimSpace(rest[end:])
		if rest != "" {
			operator, rest = rest[0], strings.TrimSpace(rest[1:])
		}
	}
	return total
}

func (s *shell) number(text string) int {
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	n, _ := strconv.Atoi(s.env[strings.TrimPrefix(text, "$")])
	return n
}

func apply(left int, operator byte, right int) int {
	switch operator {
	case '+':
		return left + right
	case '-':
		return left - right
	case '*':
		return left * right
	case '/':
		if right != 0 {
			return left / right
		}
	case '%':
		if right != 0 {
			return left % right
		}
	}
	return 0
}

package sim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// call is one run of a command.
type call struct {
	shell    *shell
	args     []string
	in       io.Reader
	out, err io.Writer
}

// command returns its exit code, and how long to sleep before the next one.
type command func(c *call) (code int, sleep time.Duration)

// commands are the programs that every simulated image has.
var commands map[string]command

// Filled here: some commands look others up.
func init() {
	quick := func(run func(c *call) int) command {
		return func(c *call) (int, time.Duration) { return run(c), 0 }
	}
	succeed := quick(func(*call) int { return 0 })
	commands = map[string]command{
		":": succeed, "true": succeed, "set": succeed, "trap": succeed, "wait": succeed, "mkdir": succeed,
		"chmod": succeed, "sync": succeed, "cd": succeed,
		"false":    quick(func(*call) int { return 1 }),
		"[":        quick(test),
		"test":     quick(test),
		"cat":      quick(cat),
		"curl":     quick(curl),
		"wget":     quick(curl),
		"date":     quick(date),
		"echo":     quick(echo),
		"env":      quick(env),
		"printenv": quick(env),
		"exit":     quick(exit),
		"export":   quick(export),
		"head":     quick(head),
		"hostname": quick(hostname),
		"id":       quick(func(c *call) int { return say(c, "uid=0(root) gid=0(root)") }),
		"kill":     quick(kill),
		"ls":       quick(ls),
		"printf":   quick(printf),
		"pwd":      quick(func(c *call) int { return say(c, "/") }),
		"rm":       quick(remove),
		"seq":      quick(seq),
		"touch":    quick(touch),
		"uname":    quick(func(c *call) int { return say(c, "Linux") }),
		"whoami":   quick(func(c *call) int { return say(c, "root") }),
		"exec":     execute,
		"sh":       nested, "bash": nested, "ash": nested,
		"sleep": sleep,
		"tail":  tail,
	}
}

func say(c *call, line string) int {
	fmt.Fprintln(c.out, line)
	return 0
}

func fail(c *call, name string, err error) int {
	var at *fs.PathError
	if errors.As(err, &at) {
		reason := at.Err
		if errors.Is(reason, fs.ErrNotExist) {
			reason = errors.New("No such file or directory")
		}
		err = fmt.Errorf("%s: %w", at.Path, reason)
	}
	fmt.Fprintf(c.err, "%s: %v\n", name, err)
	return 1
}

// flags splits off leading words that begin with a dash.
func flags(args []string) (given string, rest []string) {
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		given += args[0][1:]
		args = args[1:]
	}
	return given, args
}

func echo(c *call) int {
	args, end := c.args, "\n"
	escapes := false
	for len(args) > 0 && slices.Contains([]string{"-n", "-e", "-ne", "-en"}, args[0]) {
		if strings.Contains(args[0], "n") {
			end = ""
		}
		escapes = escapes || strings.Contains(args[0], "e")
		args = args[1:]
	}
	text := strings.Join(args, " ")
	if escapes {
		text = unescape(text)
	}
	// One write: the line must reach the log whole.
	io.WriteString(c.out, text+end)
	return 0
}

func unescape(text string) string {
	return strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`).Replace(text)
}

func printf(c *call) int {
	if len(c.args) == 0 {
		return fail(c, "printf", errors.New("a format is needed"))
	}
	values := make([]any, 0, len(c.args))
	format := strings.NewReplacer("%d", "%s", "%i", "%s").Replace(unescape(c.args[0]))
	for _, value := range c.args[1:] {
		values = append(values, value)
	}
	for missing := strings.Count(format, "%s") - len(values); missing > 0; missing-- {
		values = append(values, "")
	}
	fmt.Fprintf(c.out, format, values...)
	return 0
}

func cat(c *call) int {
	_, names := flags(c.args)
	if len(names) == 0 {
		io.Copy(c.out, c.in)
		return 0
	}
	code := 0
	for _, name := range names {
		content, err := c.shell.files.read(name)
		if err != nil {
			code = fail(c, "cat", err)
			continue
		}
		c.out.Write(content)
	}
	return code
}

func head(c *call) int {
	_, names := flags(c.args)
	if len(names) > 0 && isNumber(names[0]) {
		names = names[1:]
	}
	return cat(&call{shell: c.shell, args: names, in: c.in, out: c.out, err: c.err})
}

func isNumber(text string) bool {
	_, err := strconv.Atoi(text)
	return err == nil
}

// tail -f and -F never end; without them a file is printed whole.
func tail(c *call) (int, time.Duration) {
	given, names := flags(c.args)
	code := cat(&call{shell: c.shell, args: names, in: c.in, out: c.out, err: c.err})
	if strings.ContainsAny(given, "fF") {
		return code, forever
	}
	return code, 0
}

func date(c *call) int {
	now := c.shell.host.now().UTC()
	if len(c.args) > 0 && c.args[0] == "+%s" {
		return say(c, strconv.FormatInt(now.Unix(), 10))
	}
	return say(c, now.Format("Mon Jan _2 15:04:05 UTC 2006"))
}

func env(c *call) int {
	if len(c.args) > 0 {
		value, set := c.shell.env[c.args[0]]
		if !set {
			return 1
		}
		return say(c, value)
	}
	names := make([]string, 0, len(c.shell.env))
	for name := range c.shell.env {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(c.out, "%s=%s\n", name, c.shell.env[name])
	}
	return 0
}

func export(c *call) int {
	for _, arg := range c.args {
		if name, value, assigns := strings.Cut(arg, "="); assigns {
			c.shell.env[name] = value
		}
	}
	return 0
}

func hostname(c *call) int { return say(c, c.shell.env["HOSTNAME"]) }

func exit(c *call) int {
	code := c.shell.status
	if len(c.args) > 0 {
		code, _ = strconv.Atoi(c.args[0])
	}
	c.shell.exited = true
	return code & 0xff
}

func touch(c *call) int {
	code := 0
	for _, name := range c.args {
		if err := c.shell.files.write(name, nil, true); err != nil {
			code = fail(c, "touch", err)
		}
	}
	return code
}

func remove(c *call) int {
	given, names := flags(c.args)
	code := 0
	for _, name := range names {
		if err := c.shell.files.remove(name); err != nil && !strings.Contains(given, "f") {
			code = fail(c, "rm", err)
		}
	}
	return code
}

func ls(c *call) int {
	_, names := flags(c.args)
	if len(names) == 0 {
		names = []string{"/"}
	}
	code := 0
	for _, name := range names {
		entries, err := c.shell.files.list(name)
		if err != nil {
			if _, readErr := c.shell.files.read(name); readErr == nil {
				fmt.Fprintln(c.out, name)
				continue
			}
			code = fail(c, "ls", err)
			continue
		}
		for _, entry := range entries {
			fmt.Fprintln(c.out, entry)
		}
	}
	return code
}

func seq(c *call) int {
	first, last := 1, 0
	switch len(c.args) {
	case 1:
		last, _ = strconv.Atoi(c.args[0])
	case 2:
		first, _ = strconv.Atoi(c.args[0])
		last, _ = strconv.Atoi(c.args[1])
	default:
		return fail(c, "seq", errors.New("one or two numbers are needed"))
	}
	for i := first; i <= last && i-first < maxSteps; i++ {
		fmt.Fprintln(c.out, i)
	}
	return 0
}

func sleep(c *call) (int, time.Duration) {
	if len(c.args) == 0 {
		return fail(c, "sleep", errors.New("missing operand")), 0
	}
	var total time.Duration
	for _, arg := range c.args {
		if arg == "infinity" || arg == "inf" {
			return 0, forever
		}
		seconds, err := strconv.ParseFloat(arg, 64)
		d := time.Duration(seconds * float64(time.Second))
		if err != nil {
			if d, err = time.ParseDuration(arg); err != nil {
				return fail(c, "sleep", fmt.Errorf("invalid time interval %q", arg)), 0
			}
		}
		total += d
	}
	return 0, min(total, forever)
}

// kill sends a signal; only process 1, the container's own, exists.
func kill(c *call) int {
	signal := "TERM"
	args := c.args
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		signal = strings.TrimPrefix(strings.ToUpper(args[0][1:]), "SIG")
		args = args[1:]
	}
	for _, arg := range args {
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return fail(c, "kill", fmt.Errorf("%q is not a process id", arg))
		}
		if err := c.shell.host.kill(pid, signal); err != nil {
			return fail(c, "kill", err)
		}
	}
	return 0
}

// execute is `exec COMMAND`: nothing follows it.
func execute(c *call) (int, time.Duration) {
	if len(c.args) == 0 {
		return 0, 0
	}
	rest := &call{shell: c.shell, args: c.args[1:], in: c.in, out: c.out, err: c.err}
	pause := c.shell.invoke(c.args[0], rest)
	c.shell.at = len(c.shell.steps)
	return c.shell.status, pause
}

// nested is sh -c SCRIPT or sh FILE inside a script. It runs in place: a sleep
// in it sleeps once it is over.
func nested(c *call) (int, time.Duration) {
	inner := *c.shell
	inner.at, inner.loops, inner.exited = 0, nil, false
	inner.stdin, inner.stdout, inner.stderr = c.in, c.out, c.err
	steps, args, err := shellSteps(c.args, c.in, c.shell.files)
	if err != nil {
		fmt.Fprintf(c.err, "sh: %v\n", err)
		return 2, 0
	}
	inner.steps, inner.args = steps, args
	var total time.Duration
	for {
		pause, done := inner.run()
		if done {
			return inner.status, total
		}
		if total += pause; total >= forever {
			return 0, forever
		}
	}
}

// shellSteps compiles what the arguments of sh name: -c SCRIPT, FILE, or, with
// neither, standard input.
func shellSteps(args []string, stdin io.Reader, from *files) (steps []step, positional []string, err error) {
	given, rest := flags(args)
	var script string
	switch {
	case strings.Contains(given, "c") && len(rest) > 0:
		script, positional = rest[0], rest[1:]
	case strings.Contains(given, "c"):
		return nil, nil, errors.New("-c requires an argument")
	case len(rest) > 0:
		content, err := from.read(rest[0])
		if err != nil {
			return nil, nil, fmt.Errorf("can't open %q: no such file", rest[0])
		}
		script, positional = string(content), rest
	default:
		content, err := io.ReadAll(stdin)
		if err != nil {
			return nil, nil, err
		}
		script = string(content)
	}
	steps, err = compile(script)
	return steps, positional, err
}

// isShellProgram says that the simulation runs this command line itself, where
// other programs are servers that run until they are stopped.
func isShellProgram(argv []string) bool {
	if len(argv) == 0 {
		return false
	}
	_, known := commands[path.Base(argv[0])]
	return known
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// commands are the programs of /bin: the name of each is a link to this binary. A
// command gets its arguments without its name and returns its exit code.
var commands map[string]func(streams, []string) int

// The table is filled here, since sh looks commands up in it.
func init() {
	commands = map[string]func(streams, []string) int{
		"cat":      cat,
		"curl":     curl,
		"echo":     echo,
		"env":      env,
		"false":    func(streams, []string) int { return 1 },
		"hostname": hostname,
		"kill":     kill,
		"ls":       ls,
		"sh":       sh,
		"sleep":    sleep,
		"touch":    touch,
		"true":     func(streams, []string) int { return 0 },
	}
}

// fail prints an error in the form "cat: x: no such file or directory".
func fail(s streams, command string, err error) int {
	var path *os.PathError
	if errors.As(err, &path) {
		err = fmt.Errorf("%s: %w", path.Path, path.Err)
	}
	fmt.Fprintf(s.err, "%s: %v\n", command, err)
	return 1
}

func cat(s streams, args []string) int {
	if len(args) == 0 {
		args = []string{"-"}
	}
	code := 0
	for _, name := range args {
		if name == "-" {
			io.Copy(s.out, s.in)
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			code = fail(s, "cat", err)
			continue
		}
		if _, err := io.Copy(s.out, f); err != nil {
			code = fail(s, "cat", err)
		}
		f.Close()
	}
	return code
}

func echo(s streams, args []string) int {
	end := "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	fmt.Fprint(s.out, strings.Join(args, " "), end)
	return 0
}

func env(s streams, _ []string) int {
	for _, kv := range os.Environ() {
		fmt.Fprintln(s.out, kv)
	}
	return 0
}

func hostname(s streams, _ []string) int {
	name, err := os.Hostname()
	if err != nil {
		return fail(s, "hostname", err)
	}
	fmt.Fprintln(s.out, name)
	return 0
}

// ls lists names, with -l also mode and size, with -a also dot files.
func ls(s streams, args []string) int {
	var long, all bool
	var paths []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			long = long || strings.Contains(a, "l")
			all = all || strings.ContainsAny(a, "aA")
			continue
		}
		paths = append(paths, a)
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	code := 0
	for _, p := range paths {
		if err := list(s.out, p, long, all); err != nil {
			code = fail(s, "ls", err)
		}
	}
	return code
}

func list(out io.Writer, path string, long, all bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		describe(out, path, info, long)
		return nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && !all {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // gone since it was listed
		}
		describe(out, e.Name(), info, long)
	}
	return nil
}

func describe(out io.Writer, name string, info os.FileInfo, long bool) {
	if long {
		fmt.Fprintf(out, "%s %8d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format("Jan _2 15:04"), name)
		return
	}
	fmt.Fprintln(out, name)
}

// sleep takes seconds (with a fraction), durations as 1m30s, and "infinity".
func sleep(s streams, args []string) int {
	if len(args) != 1 {
		return fail(s, "sleep", errors.New("one argument, a number of seconds, is needed"))
	}
	if args[0] == "infinity" || args[0] == "inf" {
		time.Sleep(math.MaxInt64) // not select {}: the Go runtime ends a program in which nothing can ever happen
	}
	seconds, err := strconv.ParseFloat(args[0], 64)
	d := time.Duration(seconds * float64(time.Second))
	if err != nil {
		if d, err = time.ParseDuration(args[0]); err != nil {
			return fail(s, "sleep", fmt.Errorf("invalid time interval %q", args[0]))
		}
	}
	time.Sleep(d)
	return 0
}

func touch(s streams, args []string) int {
	for _, name := range args {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fail(s, "touch", err)
		}
		f.Close()
	}
	return 0
}

var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "TERM": syscall.SIGTERM, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
}

// kill is `kill [-SIGNAL] PID...`; the signal is a number or a name.
func kill(s streams, args []string) int {
	sig := syscall.SIGTERM
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name := strings.TrimPrefix(strings.ToUpper(args[0][1:]), "SIG")
		n, err := strconv.Atoi(name)
		known, ok := signals[name]
		switch {
		case ok:
			sig = known
		case err == nil:
			sig = syscall.Signal(n)
		default:
			return fail(s, "kill", fmt.Errorf("unknown signal %q", args[0]))
		}
		args = args[1:]
	}
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil {
			return fail(s, "kill", fmt.Errorf("%q is not a process id", a))
		}
		if err := syscall.Kill(pid, sig); err != nil {
			return fail(s, "kill", fmt.Errorf("(%d): %w", pid, err))
		}
	}
	return 0
}

// readFile is the first line of a small file, or "" when it cannot be read.
func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return string(line)
}

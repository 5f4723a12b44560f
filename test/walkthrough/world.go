package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	// settleLimit bounds the wait for a state that a step waits for.
	settleLimit = 2 * time.Minute
	settlePause = 150 * time.Millisecond
	commandTime = 3 * time.Minute
)

// world is a mend of its own in a directory of its own, with names that earlier
// steps found for later ones.
type world struct {
	dir      string // removed at the end
	mend     string
	simulate bool
	names    map[string]string // filled into commands and checks as {name}
	began    time.Time
	walked   int
	counter  *counter // while there is load
}

// output is what one command printed. Standard error is part of text, as in a
// person's terminal.
type output struct {
	text string
	code int
}

// step is one command and what is expected of it.
type step struct {
	section string // printed before the command, for the first of a section
	command string // as typed; {name} stands for a name found before
	check   check
	until   bool   // run it again, unseen, until the check holds
	fails   bool   // a non-zero exit is expected
	find    string // name of what the first group of pattern finds in the output
	pattern string
	real    bool // only where there are containers
	// load: from before this command on, requests go to the URL; calm: they end after it.
	load string
	calm bool
}

func newWorld(mend, examples string, simulate bool) (*world, error) {
	dir, err := os.MkdirTemp("", "mend-walk-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, mend: mend, simulate: simulate, names: map[string]string{}, began: time.Now()}
	w.names["up"] = "--data-dir " + w.dataDir() + " --api-port 0 --kubeconfig " + w.kubeconfig()
	if simulate {
		w.names["up"] += " --simulate 1"
	}
	w.names["data"] = w.dataDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	for _, name := range []string{"mend", "kubectl"} {
		if err := os.Symlink(mend, filepath.Join(dir, "bin", name)); err != nil {
			return nil, err
		}
	}
	return w, copyFiles(examples, filepath.Join(dir, "work"))
}

func (w *world) dataDir() string    { return filepath.Join(w.dir, "data") }
func (w *world) kubeconfig() string { return filepath.Join(w.dir, "kubeconfig") }

func copyFiles(from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}

// walk goes through the steps and stops at the first that is not as it should be.
func (w *world) walk(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if s.real && w.simulate {
			continue
		}
		if err := w.take(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", w.fill(s.command), err)
		}
		w.walked++
	}
	return nil
}

// take runs one step and prints it.
func (w *world) take(ctx context.Context, s step) error {
	if s.section != "" {
		fmt.Printf("\n# %s\n", s.section)
	}
	command := w.fill(s.command)
	fmt.Printf("\n$ %s\n", w.shown(command))
	if s.load != "" && !w.simulate {
		w.counter = startCounter(w.fill(s.load))
	}
	began := time.Now()
	out, err := w.settle(ctx, s, command)
	fmt.Print(indent(out.text))
	took := time.Since(began)
	if err != nil {
		fmt.Printf("   ✗ %v (%.2f s)\n", err, took.Seconds())
		return err
	}
	fmt.Printf("   ✓ %s (%.2f s)\n", w.fill(s.check.want), took.Seconds())
	if s.find != "" {
		found := regexp.MustCompile(w.fill(s.pattern)).FindStringSubmatch(out.text)
		if found == nil {
			return fmt.Errorf("no %s in the output", s.find)
		}
		w.names[s.find] = found[1]
	}
	if s.calm && w.counter != nil {
		return w.counter.end()
	}
	return nil
}

// settle runs the command, again and again if the step says so, until its check
// holds or the limit is reached.
func (w *world) settle(ctx context.Context, s step, command string) (output, error) {
	deadline := time.Now().Add(settleLimit)
	for {
		out, err := w.run(ctx, command)
		if err == nil {
			err = w.judge(s, out)
		}
		if err == nil || !s.until || time.Now().After(deadline) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, errors.Join(err, ctx.Err())
		case <-time.After(settlePause):
		}
	}
}

func (w *world) judge(s step, out output) error {
	if s.fails != (out.code != 0) {
		return fmt.Errorf("exit code %d", out.code)
	}
	if s.check.holds == nil {
		return errors.New("this step checks nothing")
	}
	return s.check.holds(w, out.text)
}

// run runs a command as a shell would, with mend and kubectl on the PATH.
func (w *world) run(ctx context.Context, command string) (output, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	shell := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	shell.Dir = filepath.Join(w.dir, "work")
	shell.WaitDelay = 5 * time.Second
	shell.Env = append(os.Environ(),
		"PATH="+filepath.Join(w.dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"MEND_KUBECONFIG="+w.kubeconfig(),
		"HOME="+w.dir) // kubectl's cache goes where the walk ends
	var text bytes.Buffer
	shell.Stdout, shell.Stderr = &text, &text
	err := shell.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return output{text: text.String()}, err
	}
	if ctx.Err() != nil {
		return output{text: text.String()}, fmt.Errorf("took longer than %s", commandTime)
	}
	return output{text: text.String(), code: shell.ProcessState.ExitCode()}, nil
}

// fill puts names found earlier into text.
func (w *world) fill(text string) string {
	for name, value := range w.names {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// shown leaves out what only a walk in a directory of its own needs.
func (w *world) shown(command string) string {
	for _, flags := range []string{w.names["up"], "--data-dir " + w.dataDir()} {
		command = strings.ReplaceAll(command, " "+flags, "")
	}
	return command
}

// rest ends load that a failed walk left behind.
func (w *world) rest() {
	if w.counter != nil {
		w.counter.stop()
		w.counter.running.Wait()
	}
}

// explain prints what a person would look at next.
func (w *world) explain() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, command := range []string{
		"kubectl get nodes,deploy,rs,pods -A -o wide",
		"kubectl get events -A --sort-by=.lastTimestamp | tail -n 30",
		"mend logs --tail 40 --data-dir " + w.dataDir(),
	} {
		out, err := w.run(ctx, command)
		fmt.Printf("\n$ %s\n%s", w.shown(command), indent(out.text))
		if err != nil {
			fmt.Println(err)
		}
	}
}

func (w *world) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if out, err := w.run(ctx, "mend down --purge --data-dir "+w.dataDir()); err != nil || out.code != 0 {
		fmt.Print(indent(out.text))
		return // keep what could not be purged, for a look at it
	}
	_ = os.RemoveAll(w.dir)
}

func indent(text string) string {
	if text == "" {
		return ""
	}
	return "   " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n   ") + "\n"
}

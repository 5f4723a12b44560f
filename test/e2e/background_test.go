package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// background is a command that goes on while the test does.
type background struct {
	c     *cluster
	lines chan string
}

// background starts mend with args; it is interrupted at the end of the test.
func (c *cluster) background(args ...string) *background {
	c.t.Helper()
	command := exec.Command(c.mend, args...)
	command.Env = append(os.Environ(), "MEND_KUBECONFIG="+c.kubeconfig(), "HOME="+c.dir)
	out, err := command.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		c.t.Fatal(err)
	}
	b := &background{c: c, lines: make(chan string, 1000)}
	go func() {
		defer close(b.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			b.lines <- scanner.Text()
		}
	}()
	c.t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		stop := time.AfterFunc(10*time.Second, func() { _ = command.Process.Kill() })
		defer stop.Stop()
		_ = command.Wait()
	})
	return b
}

// find waits for a line that matches and returns the first group.
func (b *background) find(pattern string) string {
	b.c.t.Helper()
	var seen []string
	limit := time.After(stateLimit)
	for {
		select {
		case line, ok := <-b.lines:
			seen = append(seen, line)
			if found := regexp.MustCompile(pattern).FindStringSubmatch(line); found != nil {
				return found[1]
			}
			if !ok {
				b.c.t.Fatalf("it ended without %q:\n%s", pattern, strings.Join(seen, "\n"))
			}
		case <-limit:
			b.c.t.Fatalf("no %q within %s:\n%s", pattern, stateLimit, strings.Join(seen, "\n"))
		}
	}
}

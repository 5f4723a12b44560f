package containerd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ignoresTerm reads the mask of ignored signals of a process.
func ignoresTerm(pid int) (bool, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return false, err
	}
	_, rest, _ := strings.Cut(string(b), "SigIgn:")
	text, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	return mask&(1<<(unix.SIGTERM-1)) != 0, err
}

func TestOldProgramsStayOnlyWhileOneRuns(t *testing.T) {
	cfg := exampleConfig()
	cfg.DataDir = t.TempDir()
	id := func(c string) string { return strings.Repeat(c, 64) }
	for _, name := range []string{id("a"), id("b"), id("c"), "other"} {
		if err := os.MkdirAll(filepath.Join(cfg.binParent(), name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(cfg.binParent(), id("b"), "shim")
	copyProgram(t, "sleep", program)
	cmd := exec.Command(program, "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()

	removeOldBundles(cfg, id("c"))
	if got, want := list(t, cfg.binParent()), fmt.Sprint([]string{id("b"), id("c"), "other"}); got != want {
		t.Errorf("with a program of b running, these stay: %s, want %s", got, want)
	}
	cmd.Process.Kill()
	cmd.Wait()
	removeOldBundles(cfg, id("c"))
	if got, want := list(t, cfg.binParent()), fmt.Sprint([]string{id("c"), "other"}); got != want {
		t.Errorf("with none running, these stay: %s, want %s", got, want)
	}
}

func copyProgram(t *testing.T, name, to string) {
	t.Helper()
	from, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return fmt.Sprint(names)
}

func TestALogThatGrewIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appending, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer appending.Close()
	fmt.Fprintln(appending, "small")
	truncateLog(path)
	if b, err := os.ReadFile(path); err != nil || string(b) != "small\n" {
		t.Errorf("a small log reads %q, %v", b, err)
	}
	if _, err := io.Copy(appending, bytes.NewReader(make([]byte, logLimit))); err != nil {
		t.Fatal(err)
	}
	truncateLog(path)
	fmt.Fprintln(appending, "after") // as containerd goes on writing
	if b, err := os.ReadFile(path); err != nil || string(b) != "after\n" {
		t.Errorf("the log reads %d bytes, %v; want only what came after", len(b), err)
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() != logLimit+6 {
		t.Errorf("the earlier log is %v, %v; want %d bytes", info, err, logLimit+6)
	}
}

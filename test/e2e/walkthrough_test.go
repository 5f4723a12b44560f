package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestWalkthrough follows both documents on real containers.
func TestWalkthrough(t *testing.T) {
	needRoot(t)
	walk(t)
}

// TestWalkthroughSimulated follows them without containers.
func TestWalkthroughSimulated(t *testing.T) { walk(t, "--simulate") }

func walk(t *testing.T, flags ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	program := filepath.Join(t.TempDir(), "walkthrough")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "../walkthrough").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := append([]string{"--mend", binary(t), "--examples", filepath.Join("..", "..", "examples")}, flags...)
	command := exec.CommandContext(ctx, program, args...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = time.Minute
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

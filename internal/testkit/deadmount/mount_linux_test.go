package deadmount

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestWhoAsksWaitsUntilTheEnd: the fixture is what it says.
func TestWhoAsksWaitsUntilTheEnd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("left out: mounting needs root")
	}
	m := New(t, t.TempDir())
	inner := filepath.Join(m.Dir, "inner")
	if info, err := os.Stat(inner); err != nil || !info.IsDir() {
		t.Fatalf("while it is alive: %v, %v", info, err)
	}
	if entries, err := os.ReadDir(m.Dir); err != nil || len(entries) > 0 {
		t.Fatalf("while it is alive: %v, %v", entries, err)
	}
	m.Die()
	// Another process: this one could not end while it waits for itself.
	answered := make(chan error, 1)
	go func() { answered <- exec.Command("stat", inner).Run() }()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	limit := time.After(30 * time.Second)
	for m.Asked() == 0 {
		select {
		case err := <-answered:
			t.Fatalf("a dead file system answered: %v", err)
		case <-limit:
			t.Fatal("nobody asked")
		case <-ticker.C:
		}
	}
	select {
	case err := <-answered:
		t.Fatalf("a dead file system answered: %v", err)
	default:
	}
	m.End()
	if err := <-answered; err == nil {
		t.Error("no error after the end")
	}
}

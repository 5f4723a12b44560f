package store

import (
	"fmt"
	"log/slog"
	"testing"
)

// TestRestartsBehindAShortLog: with some hundred entries since the last snapshot on
// disk, the server compacts raft's log while it is read back at the start. Standing
// for election in that moment must not end in a panic.
func TestRestartsBehindAShortLog(t *testing.T) {
	dir := t.TempDir()
	for restart := range 15 {
		s, err := Open(Config{DataDir: dir, Log: slog.New(slog.DiscardHandler), UnsafeNoFsync: true})
		if err != nil {
			t.Fatalf("restart %d: %v", restart, err)
		}
		for i := range 60 {
			if _, err := s.Client().Put(limited(t), fmt.Sprint("/registry/", i), "x"); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

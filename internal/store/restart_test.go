package store

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
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

// The log of a start without faults has nothing that an operator must read, whether the
// database is empty or has a long log behind it.
func TestAStartWithoutFaultsIsQuiet(t *testing.T) {
	dir := t.TempDir()
	var log lockedLines
	start := func() *Store {
		s, err := Open(Config{DataDir: dir, Log: slog.New(slog.NewTextHandler(&log, nil)), UnsafeNoFsync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := start()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var writers errgroup.Group
	for w := range 8 {
		writers.Go(func() error {
			for i := range 900 { // 7,200 in all
				if _, err := s.Client().Put(ctx, fmt.Sprintf("/registry/%d/%d", w, i%10), "1"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := start().Close(); err != nil {
		t.Fatal(err)
	}
	if len(log.lines) > 0 {
		t.Errorf("%d lines:\n%s", len(log.lines), strings.Join(log.lines[:min(5, len(log.lines))], ""))
	}
}

// lockedLines is a log that several goroutines write.
type lockedLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *lockedLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

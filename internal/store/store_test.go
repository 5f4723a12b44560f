package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Config{DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestWhatWasWrittenIsThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put, err := s.Client().Put(limited(t), "/registry/a", "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Health(limited(t)); err != nil {
		t.Errorf("health: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	got, err := again.Client().Get(limited(t), "/registry/a")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" || got.Kvs[0].ModRevision != put.Header.Revision {
		t.Errorf("after a restart: %v, %v", got, err)
	}
}

func TestWatchesSeeWritesAndProgress(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := clientv3.WithRequireLeader(limited(t))
	watch := s.Client().Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if r := <-watch; !r.Created {
		t.Fatalf("first: %v", r)
	}
	if _, err := s.Client().Put(ctx, "/registry/a", "1"); err != nil {
		t.Fatal(err)
	}
	if r := <-watch; len(r.Events) != 1 || string(r.Events[0].Kv.Key) != "/registry/a" {
		t.Fatalf("write: %v", r)
	}
	other, err := s.Client().Put(ctx, "/elsewhere", "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client().RequestProgress(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-watch; !r.IsProgressNotify() || r.Header.Revision != other.Header.Revision {
		t.Errorf("progress: %v", r)
	}
}

func TestNothingListens(t *testing.T) {
	before := listening(t)
	open(t, t.TempDir())
	for address := range listening(t) {
		if !before[address] {
			t.Errorf("the store listens on %s", address)
		}
	}
}

// listening is the set of local TCP sockets in state LISTEN of this process's
// network namespace that belong to this process.
func listening(t *testing.T) map[string]bool {
	t.Helper()
	own := map[string]bool{}
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "socket:[") {
			own[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	found := map[string]bool{}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own[f[9]] {
				found[f[1]] = true
			}
		}
	}
	return found
}

func TestADirectoryThatCannotBeUsedIsNamedInOneLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file, filepath.Join(file, "below")} {
		_, err := Open(Config{DataDir: dir, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.HasPrefix(err.Error(), "store: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", dir, err)
		}
	}
}

func TestACorruptDatabaseIsAnErrorOfOneLine(t *testing.T) {
	for _, part := range []string{"member/snap/db", "member/wal/*.wal"} {
		t.Run(part, func(t *testing.T) {
			// Not t.TempDir: an etcd that failed to start goes on preparing a file.
			dir, err := os.MkdirTemp("", "mend-store-*")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			s := open(t, dir)
			for i := range 50 {
				if _, err := s.Client().Put(limited(t), fmt.Sprint("/registry/", i), strings.Repeat("x", 1000)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, "etcd", part))
			if err != nil || len(files) == 0 {
				t.Fatalf("no file %s: %v", part, err)
			}
			damage(t, files[0])
			_, err = Open(Config{DataDir: dir, Log: slog.New(slog.DiscardHandler)})
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "cannot be opened") || !strings.Contains(err.Error(), filepath.Join(dir, "etcd")) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// damage overwrites the first 20 KiB, meta pages and all.
func damage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(strings.Repeat("garbage!", 2560)), 0); err != nil {
		t.Fatal(err)
	}
}

func TestAPowerCutInTheMiddleOfAWriteLosesNothingBeforeIt(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.Client().Put(limited(t), "/registry/a", "1"); err != nil {
		t.Fatal(err)
	}
	// What is on disk at this moment is what a power cut leaves.
	after := t.TempDir()
	if err := os.CopyFS(after, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(after, "etcd", "member", "wal", "*.wal"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	tear(t, files[0])
	again, err := Open(Config{DataDir: after, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("does not open: %v", err)
	}
	defer again.Close()
	if got, err := again.Client().Get(limited(t), "/registry/a"); err != nil || len(got.Kvs) != 1 {
		t.Errorf("lost: %v, %v", got, err)
	}
}

// tear appends a record of 2048 bytes of which only the first sector arrived.
func tear(t *testing.T, path string) {
	t.Helper()
	const sector = 512
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := (len(strings.TrimRight(string(text), "\x00")) + 7) / 8 * 8
	binary.LittleEndian.PutUint64(text[end:], 2048)
	for i := end + 8; i%sector != 0; i++ {
		text[i] = 0xA5
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

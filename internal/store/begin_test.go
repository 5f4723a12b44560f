package store

import (
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestAPowerCutInTheFirstStart: etcd cannot read a database without its first commit
// beside a log without its first entries. The next start begins anew.
func TestAPowerCutInTheFirstStart(t *testing.T) {
	dir := t.TempDir()
	config := Config{DataDir: dir, Log: slog.New(slog.DiscardHandler)}
	if first, err := begin(dir); !first || err != nil {
		t.Fatalf("begin: %v, %v", first, err)
	}
	last := newLastWords()
	etcd, err := start(etcdConfig(filepath.Join(dir, "etcd"), config, last), last)
	if err != nil {
		t.Fatal(err)
	}
	cut := t.TempDir()
	copied := os.CopyFS(cut, os.DirFS(dir))
	etcd.Close()
	if copied != nil {
		t.Fatal(copied)
	}
	dropEntries(t, filepath.Join(cut, "etcd", "member", "wal", "0000000000000000-0000000000000000.wal"))
	if database, err := contents(filepath.Join(cut, databaseFile)); database.members || err != nil {
		t.Fatalf("there was a commit already: %v, %v", database, err)
	}
	s := open(t, cut)
	if got, err := s.Client().Get(limited(t), "/registry/a"); err != nil || len(got.Kvs) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	if there, err := exists(filepath.Join(cut, begunName)); there || err != nil {
		t.Errorf("mark: %v, %v", there, err)
	}
}

// A mark that came back, since power went before its removal was on disk, costs nothing
// that is in a committed database.
func TestAMarkBesideACommittedDatabase(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.Client().Put(limited(t), "/registry/a", "1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, begunName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if got, err := s.Client().Get(limited(t), "/registry/a"); err != nil || len(got.Kvs) != 1 {
		t.Errorf("lost: %v, %v", got, err)
	}
	if there, err := exists(filepath.Join(dir, begunName)); there || err != nil {
		t.Errorf("mark: %v, %v", there, err)
	}
}

// dropEntries leaves the head of a log: sum, description and snapshot.
func dropEntries(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := 0
	for range 3 {
		frame := binary.LittleEndian.Uint64(text[end:])
		size, padding := frame&(1<<56-1), frame>>56&7
		end += 8 + int(size+padding)
	}
	clear(text[end:])
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

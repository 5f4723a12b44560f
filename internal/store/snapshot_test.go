package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestASnapshotGivesBackTheStateOfItsMoment(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "one.db")
	s := open(t, dir)
	var last int64
	for i := range 300 {
		put, err := s.Client().Put(limited(t), fmt.Sprint("/registry/", i%50), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		last = put.Header.Revision
	}
	if err := s.Save(limited(t), file); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(limited(t), file); err == nil {
		t.Error("a second snapshot replaced the first")
	}
	if _, err := s.Client().Put(limited(t), "/registry/0", "later"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	kept, err := Restore(file, dir, time.Unix(1, 0))
	if err != nil || filepath.Base(kept) != "etcd.before-19700101T000001Z" {
		t.Fatalf("restore: %q, %v", kept, err)
	}
	for restart := range 3 {
		again := open(t, dir)
		got, err := again.Client().Get(limited(t), "/registry/0")
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "250" || got.Header.Revision != last+int64(restart) {
			t.Fatalf("after %d restarts: %v, %v", restart, got, err)
		}
		// Writes count from the first on, across restarts.
		if _, err := again.Client().Put(limited(t), "/registry/new", fmt.Sprint(restart)); err != nil {
			t.Fatal(err)
		}
		if got, err := again.Client().Get(limited(t), "/registry/new"); err != nil || string(got.Kvs[0].Value) != fmt.Sprint(restart) {
			t.Fatalf("a write after the restore: %v, %v", got, err)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADamagedSnapshotIsRefusedAndNothingChanged(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "one.db")
	s := open(t, dir)
	if _, err := s.Client().Put(limited(t), "/registry/a", "1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(limited(t), file); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := []byte(string(whole))
	flipped[len(flipped)/2] ^= 1
	for name, content := range map[string][]byte{
		"empty": nil, "cut in a page": whole[:len(whole)/2+7], "cut at a page": whole[:len(whole)-32], "a flipped bit": flipped, "text": []byte(strings.Repeat("x", 4096)),
	} {
		t.Run(name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "bad.db")
			if err := os.WriteFile(bad, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Restore(bad, dir, time.Unix(1, 0)); !errors.Is(err, ErrChecksum) || strings.Contains(err.Error(), "\n") {
				t.Errorf("restore: %v", err)
			}
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the data directory holds %v, %v", entries, err)
	}
	again := open(t, dir)
	if got, err := again.Client().Get(limited(t), "/registry/a"); err != nil || len(got.Kvs) != 1 {
		t.Errorf("the state: %v, %v", got, err)
	}
}

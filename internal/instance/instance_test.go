package instance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCreateThenFind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	made, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !validID.MatchString(made.ID) {
		t.Errorf("id = %q", made.ID)
	}
	again, err := Create(dir)
	if err != nil || again != made {
		t.Errorf("second Create = %v, %v; want %v", again, err, made)
	}
}

func TestDirectoriesThatAreRefused(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  error
		text  string
	}{
		{"somebody else's files", map[string]string{"etc": "x"}, ErrNotOurs, "--data-dir"},
		{"a newer format", map[string]string{"format": "mend-data-format 99\n", "instance": "abcdef\n"}, ErrNewer, "format 99"},
		{"a torn stamp", map[string]string{"format": "mend-da"}, errBadStamp, "format"},
		{"an empty stamp", map[string]string{"format": ""}, errBadStamp, "format"},
		{"a lost id", map[string]string{"format": "mend-data-format 1\n"}, nil, "instance"},
		{"a torn id", map[string]string{"format": "mend-data-format 1\n", "instance": "abc"}, nil, "instance"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Create(dir)
			if err == nil || (tt.want != nil && !errors.Is(err, tt.want)) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error = %v, want %v naming %q", err, tt.want, tt.text)
			}
			for name, text := range tt.files {
				if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
					t.Errorf("%s was changed to %q (%v)", name, got, err)
				}
			}
		})
	}
}

func TestACrashBeforeTheStampStartsAnew(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, idFile), []byte("012345\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir); err != nil {
		t.Fatal(err)
	}
}

func TestLockTellsTheHolder(t *testing.T) {
	made, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, running, err := made.Running(); running || err != nil {
		t.Fatalf("running before the first start: %v, %v", running, err)
	}
	lock, err := made.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Tell(Holder{PID: 42, Server: "https://127.0.0.1:6443"}); err != nil {
		t.Fatal(err)
	}
	if _, err := made.Acquire(); !errors.Is(err, ErrRunning) {
		t.Errorf("second Acquire = %v", err)
	}
	holder, running, err := made.Running()
	if err != nil || !running || holder.PID != 42 {
		t.Errorf("Running = %+v, %v, %v", holder, running, err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if _, running, err := made.Running(); running || err != nil {
		t.Errorf("running after the release: %v, %v", running, err)
	}
}

func TestADirectoryBehindALinkIsMeantItself(t *testing.T) {
	parent := t.TempDir()
	target, link := filepath.Join(parent, "target"), filepath.Join(parent, "link")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	made, err := Create(link)
	if err != nil || made.Dir != target {
		t.Errorf("Create = %+v, %v; want the directory %s", made, err, target)
	}
	if found, err := Find(link); err != nil || found != made {
		t.Errorf("Find = %+v, %v; want %+v", found, err, made)
	}
}

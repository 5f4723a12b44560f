package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// logger writes as a runtime does: into the file it has open, until it is told to
// open it again.
type logger struct {
	mu   sync.Mutex
	path string
	file *os.File
	fail error
	slow func() // runs between the creation of the new file and its use
}

func newLogger(t *testing.T) *logger {
	t.Helper()
	l := &logger{path: filepath.Join(t.TempDir(), "0.log")}
	if err := l.ReopenContainerLog(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.file.Close() })
	return l
}

func (l *logger) ReopenContainerLog(context.Context, string) error {
	if l.fail != nil {
		return l.fail
	}
	file, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if l.slow != nil {
		l.slow()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = file
	return nil
}

func (l *logger) write(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.WriteString(line(text)); err != nil {
		panic(err)
	}
}

func names(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	return found
}

func TestRotationKeepsItsNumberOfFiles(t *testing.T) {
	app := newLogger(t)
	clock := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	rotator := &Rotator{Runtime: app, MaxSize: 100, MaxFiles: 4, Clock: clock}
	for round := range 7 {
		app.write(fmt.Sprintf("%d %s", round, strings.Repeat("x", 100)))
		if err := rotator.Check(t.Context(), "c", app.path); err != nil {
			t.Fatal(err)
		}
		clock.Step(10 * time.Second)
	}
	want := []string{"0.log", "0.log.20260101-000040.gz", "0.log.20260101-000050.gz", "0.log.20260101-000100"}
	if got := names(t, app.path); !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	file, err := os.Open(app.path + ".20260101-000050.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := io.ReadAll(zip); err != nil || !strings.HasPrefix(string(content), line("5 ")[:32]) {
		t.Errorf("compressed file holds %.50q, %v", content, err)
	}
	if info, err := os.Stat(app.path); err != nil || info.Size() != 0 {
		t.Errorf("newest file: %v, %v", info, err)
	}
	if err := Remove(app.path); err != nil || len(names(t, app.path)) != 0 {
		t.Errorf("after Remove: %v, %v", names(t, app.path), err)
	}
}

func TestSmallLogsAreLeftAlone(t *testing.T) {
	app := newLogger(t)
	app.write("small")
	for _, rotator := range []*Rotator{{Runtime: app}, {Runtime: app, MaxSize: -1}} {
		if err := rotator.Check(t.Context(), "c", app.path); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, app.path); !slices.Equal(got, []string{"0.log"}) {
		t.Errorf("files %v", got)
	}
}

func TestRotationIsTakenBackWhenTheRuntimeFails(t *testing.T) {
	app := newLogger(t)
	app.write(strings.Repeat("x", 100))
	app.fail = errors.New("runtime is down")
	err := (&Rotator{Runtime: app, MaxSize: 10}).Check(t.Context(), "c", app.path)
	if !errors.Is(err, app.fail) {
		t.Errorf("got %v", err)
	}
	if got := names(t, app.path); !slices.Equal(got, []string{"0.log"}) {
		t.Errorf("files %v, want the log under its name", got)
	}
}

// TestRotationGoesOnAfterACrash leaves the directory as a crash behind each step
// would.
func TestRotationGoesOnAfterACrash(t *testing.T) {
	for name, test := range map[string]struct {
		files []string
		want  []string
	}{
		"renamed, not reopened": {files: []string{"0.log.20250101-000000"}, want: []string{"0.log", "0.log.20250101-000000"}},
		"half compressed":       {files: []string{"0.log", "0.log.20250101-000000", "0.log.20250101-000000.tmp"}, want: []string{"0.log", "0.log.20250101-000000.gz", "0.log.20260101-000000"}},
		"compressed, original not removed": {
			files: []string{"0.log", "0.log.20250101-000000", "0.log.20250101-000000.gz"},
			want:  []string{"0.log", "0.log.20250101-000000.gz", "0.log.20260101-000000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, file := range test.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(line(strings.Repeat("x", 100))), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			app := &logger{path: filepath.Join(dir, "0.log")}
			t.Cleanup(func() { app.file.Close() })
			clock := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			if err := (&Rotator{Runtime: app, MaxSize: 10, Clock: clock}).Check(t.Context(), "c", app.path); err != nil {
				t.Fatal(err)
			}
			if got := names(t, app.path); !slices.Equal(got, test.want) {
				t.Errorf("files %v, want %v", got, test.want)
			}
		})
	}
}

// TestFollowLosesNoLineAcrossRotations writes as fast as it can while the log is
// rotated again and again, faster than it can read; the runtime goes on in the old file for a while after the
// new one is there.
func TestFollowLosesNoLineAcrossRotations(t *testing.T) {
	app, end := newLogger(t), newContainer()
	app.slow = func() {
		for i := range 5 {
			app.write(fmt.Sprint("late ", i))
		}
	}
	out, done := followed(t, t.Context(), NewReader(nil, nil), Request{Path: app.path, Running: end.running, Ended: end.ended})
	clock := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	rotator := &Rotator{Runtime: app, MaxSize: 1, MaxFiles: 100, Clock: clock}
	var want strings.Builder
	want.WriteString("begin\n")
	app.write("begin")
	out.waitFor(t, want.String()) // it has the first file open
	for round := range 20 {
		for i := range 200 {
			text := fmt.Sprintf("%d/%d", round, i)
			app.write(text)
			want.WriteString(text + "\n")
		}
		for i := range 5 {
			want.WriteString(fmt.Sprint("late ", i) + "\n")
		}
		if err := rotator.Check(t.Context(), "c", app.path); err != nil {
			t.Fatal(err)
		}
		clock.Step(time.Second)
	}
	out.waitFor(t, want.String())
	close(end.ended)
	if err := await(t, done); err != nil {
		t.Fatal(err)
	}
}

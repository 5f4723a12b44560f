package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

const sample = `2026-01-01T00:00:01Z stdout F one
2026-01-01T00:00:02.5Z stderr F two
2026-01-01T00:00:03Z stdout P thr
2026-01-01T00:00:03Z stdout F ee
2026-01-01T00:00:04+01:00 stdout F:new-tag four
2026-01-01T00:00:05Z stdout F 
`

func logFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func pointer[T any](value T) *T { return &value }

func TestRead(t *testing.T) {
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for name, test := range map[string]struct {
		content string
		request Request
		only    string // stdout or stderr
		want    string
	}{
		"everything":                     {want: "one\ntwo\nthree\nfour\n\n"},
		"one stream":                     {only: "stderr", want: "two\n"},
		"the other stream":               {only: "stdout", want: "one\nthree\nfour\n\n"},
		"tail counts parts as lines":     {request: Request{Tail: pointer[int64](3)}, want: "ee\nfour\n\n"},
		"tail of nothing":                {request: Request{Tail: pointer[int64](0)}, want: ""},
		"tail of more than there is":     {request: Request{Tail: pointer[int64](100)}, want: "one\ntwo\nthree\nfour\n\n"},
		"since":                          {request: Request{Since: at("2026-01-01T00:00:02.6Z")}, want: "three\n\n"},
		"since a line's own time":        {request: Request{Since: at("2026-01-01T00:00:05Z")}, want: "\n"},
		"timestamps once per line":       {request: Request{Timestamps: true}, want: "2026-01-01T00:00:01.000000000Z one\n2026-01-01T00:00:02.500000000Z two\n2026-01-01T00:00:03.000000000Z three\n2026-01-01T00:00:04.000000000+01:00 four\n2026-01-01T00:00:05.000000000Z \n"},
		"limit cuts a line":              {request: Request{Limit: pointer[int64](6)}, want: "one\ntw"},
		"limit at a line's end":          {request: Request{Limit: pointer[int64](4)}, want: "one\n"},
		"limit counts timestamps":        {request: Request{Limit: pointer[int64](10), Timestamps: true}, want: "2026-01-01"},
		"limit counts what is shown":     {request: Request{Limit: pointer[int64](2)}, only: "stderr", want: "tw"},
		"an empty file":                  {content: "-", want: ""},
		"the last line may lack its end": {content: "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stdout F two", want: "one\ntwo"},
		"other lines are left out":       {content: "\x00\x00\nnonsense\n2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:01Z other F x\n", want: "one\n"},
		"streams that interleave":        {content: "2026-01-01T00:00:01Z stdout P a\n2026-01-01T00:00:02Z stderr F b\n2026-01-01T00:00:03Z stdout F c\n", request: Request{Timestamps: true}, only: "stdout", want: "2026-01-01T00:00:01.000000000Z ac\n"},
	} {
		t.Run(name, func(t *testing.T) {
			content := test.content
			switch content {
			case "":
				content = sample
			case "-":
				content = ""
			}
			test.request.Path = logFile(t, content)
			var out bytes.Buffer
			var stdout, stderr io.Writer = &out, &out
			switch test.only {
			case "stdout":
				stderr = nil
			case "stderr":
				stdout = nil
			}
			if err := NewReader(nil, nil).Read(t.Context(), test.request, stdout, stderr); err != nil {
				t.Fatal(err)
			}
			if out.String() != test.want {
				t.Errorf("got  %q\nwant %q", out.String(), test.want)
			}
		})
	}
}

func TestReadNamesTheFileThatIsMissing(t *testing.T) {
	err := NewReader(nil, nil).Read(t.Context(), Request{Path: "/does/not/exist.log"}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), `failed to try resolving symlinks in path "/does/not/exist.log"`) {
		t.Errorf("got %v", err)
	}
}

func TestReadMakesAMissingFileIfItCan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var out bytes.Buffer
	request := Request{Path: path, Missing: func() error { return os.WriteFile(path, []byte(sample), 0o600) }}
	if err := NewReader(nil, nil).Read(t.Context(), request, &out, nil); err != nil || !strings.HasPrefix(out.String(), "one\n") {
		t.Errorf("got %q, %v", out.String(), err)
	}
	gone := errors.New("the container is gone")
	request = Request{Path: path + ".other", Missing: func() error { return gone }}
	if err := NewReader(nil, nil).Read(t.Context(), request, &out, nil); !errors.Is(err, gone) {
		t.Errorf("got %v, want what Missing says", err)
	}
}

func TestTailIsTheEndOfTheWhole(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.IntRange(0, 3*tailBlock/2), 0, 12).Draw(t, "lengths")
		n := rapid.Int64Range(0, 14).Draw(t, "tail")
		var file, want strings.Builder
		for i, length := range lengths {
			text := strings.Repeat(string(rune('a'+i)), length) + "\n"
			file.WriteString("2026-01-01T00:00:00Z stdout F " + text)
			if int64(len(lengths)-i) <= n {
				want.WriteString(text)
			}
		}
		path := filepath.Join(dir, "0.log")
		if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := NewReader(nil, nil).Read(context.Background(), Request{Path: path, Tail: &n}, &out, &out); err != nil {
			t.Fatal(err)
		}
		if out.String() != want.String() {
			t.Fatalf("tail %d of %v: got %d bytes, want %d", n, lengths, out.Len(), want.Len())
		}
	})
}

func TestRequestFor(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	since := metav1.NewTime(now.Add(-time.Hour))
	if got := RequestFor(&v1.PodLogOptions{SinceSeconds: pointer[int64](90), Follow: true}, now); !got.Since.Equal(now.Add(-90*time.Second)) || !got.Follow {
		t.Errorf("sinceSeconds: %+v", got)
	}
	if got := RequestFor(&v1.PodLogOptions{SinceTime: &since, Timestamps: true, TailLines: pointer[int64](3), LimitBytes: pointer[int64](4)}, now); !got.Since.Equal(since.Time) || !got.Timestamps || *got.Tail != 3 || *got.Limit != 4 {
		t.Errorf("sinceTime: %+v", got)
	}
}

// sink collects what a follower writes and lets a test wait for it.
type sink struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

func newSink() *sink { return &sink{changed: make(chan struct{}, 1)} }

func (s *sink) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wake(s.changed)
	return s.text.Write(text)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *sink) waitFor(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for s.String() != want {
		select {
		case <-s.changed:
		case <-deadline:
			t.Fatalf("got %d bytes, want %d: %.300q", len(s.String()), len(want), s.String())
		}
	}
}

// container is a writer of logs that can end.
type container struct {
	ended chan struct{}
}

func newContainer() *container { return &container{ended: make(chan struct{})} }

func (c *container) running(context.Context) (bool, error) {
	select {
	case <-c.ended:
		return false, nil
	default:
		return true, nil
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func line(text string) string { return "2026-01-01T00:00:00Z stdout F " + text + "\n" }

// followed starts a follower and returns what it writes, and its end.
func followed(t *testing.T, ctx context.Context, reader *Reader, request Request) (*sink, chan error) {
	t.Helper()
	request.Follow = true
	out, done := newSink(), make(chan error, 1)
	go func() { done <- reader.Read(ctx, request, out, out) }()
	return out, done
}

func await(t *testing.T, done chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("the follower did not end")
		return nil
	}
}

func TestFollowShowsLinesAsTheyComeAndEndsWithTheContainer(t *testing.T) {
	path, app := logFile(t, line("one")), newContainer()
	reader := NewReader(nil, nil)
	flushed := make(chan struct{}, 100)
	out, done := followed(t, t.Context(), reader, Request{Path: path, Running: app.running, Ended: app.ended, Flush: func() { flushed <- struct{}{} }})
	out.waitFor(t, "one\n")
	<-flushed
	appendTo(t, path, "2026-01-01T00:00:00Z stdout F tw")
	appendTo(t, path, "o\n")
	out.waitFor(t, "one\ntwo\n")
	appendTo(t, path, line("last"))
	close(app.ended)
	if err := await(t, done); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "one\ntwo\nlast\n")
	reader.watch.mu.Lock()
	defer reader.watch.mu.Unlock()
	if reader.watch.inotify != nil {
		t.Error("the inotify instance is still open without followers")
	}
}

func TestFollowFromATail(t *testing.T) {
	path, app := logFile(t, line("one")+line("two")), newContainer()
	out, done := followed(t, t.Context(), NewReader(nil, nil), Request{Path: path, Tail: pointer[int64](1), Running: app.running, Ended: app.ended})
	out.waitFor(t, "two\n")
	appendTo(t, path, line("three"))
	out.waitFor(t, "two\nthree\n")
	close(app.ended)
	if err := await(t, done); err != nil {
		t.Fatal(err)
	}
}

func TestFollowEndsWithItsContextOrItsLimit(t *testing.T) {
	path, app := logFile(t, ""), newContainer()
	ctx, cancel := context.WithCancel(t.Context())
	_, done := followed(t, ctx, NewReader(nil, nil), Request{Path: path, Running: app.running})
	cancel()
	if err := await(t, done); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v, want context.Canceled", err)
	}
	out, done := followed(t, t.Context(), NewReader(nil, nil), Request{Path: path, Running: app.running, Limit: pointer[int64](5)})
	appendTo(t, path, line("abc")+line("def"))
	if err := await(t, done); err != nil {
		t.Errorf("ended with %v at its limit", err)
	}
	out.waitFor(t, "abc\nd")
}

func TestFollowReportsARuntimeThatFails(t *testing.T) {
	broken := fmt.Errorf("container is gone")
	_, done := followed(t, t.Context(), NewReader(nil, nil), Request{Path: logFile(t, ""), Running: func(context.Context) (bool, error) { return false, broken }})
	if err := await(t, done); !errors.Is(err, broken) {
		t.Errorf("ended with %v", err)
	}
}

func TestFollowStartsAnewWhenTheFileIsCut(t *testing.T) {
	path, app := logFile(t, line("one")+line("two")), newContainer()
	out, done := followed(t, t.Context(), NewReader(nil, nil), Request{Path: path, Running: app.running, Ended: app.ended})
	out.waitFor(t, "one\ntwo\n")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, func() { appendTo(t, path, line("three")) })
	out.waitFor(t, "one\ntwo\nthree\n")
	close(app.ended)
	if err := await(t, done); err != nil {
		t.Fatal(err)
	}
}

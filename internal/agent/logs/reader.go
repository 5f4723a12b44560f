package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// stampFormat is how timestamps are printed: of fixed width.
const stampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// checkPeriod is how often a follower looks by itself whether the container has
// ended and the file has changed. Events come before; this stands behind them.
const checkPeriod = time.Second

// Request says what to read.
type Request struct {
	Path       string // of the newest file; links are followed
	Tail       *int64 // lines from the end; nil: all
	Limit      *int64 // bytes; nil: no limit
	Since      time.Time
	Timestamps bool
	// Missing, if not nil, is asked once to make a file that is not there.
	Missing func() error
	// Follow goes on until the container has ended or the context has.
	Follow bool
	// Running says whether the container still writes. It is required to follow.
	// An error ends the reading with it.
	Running func(ctx context.Context) (bool, error)
	// Ended, if not nil, is closed when the container has ended. It lets a
	// follower end at once rather than at its next check.
	Ended <-chan struct{}
	// Flush, if not nil, is called when all that is there has been written.
	Flush func()
}

// Maker is a runtime that makes a container's log when something is written to it, and
// otherwise when it is asked to.
type Maker interface {
	MakeContainerLog(containerID string) error
}

// MakeIn is what to do about the missing log of a container of this runtime: nil if the
// runtime is no [Maker].
func MakeIn(runtime any, containerID string) func() error {
	maker, ok := runtime.(Maker)
	if !ok {
		return nil
	}
	return func() error { return maker.MakeContainerLog(containerID) }
}

// RequestFor translates the API's options. Path, Running, Ended and Flush are the
// caller's to set.
func RequestFor(options *v1.PodLogOptions, now time.Time) Request {
	request := Request{
		Tail:       options.TailLines,
		Limit:      options.LimitBytes,
		Timestamps: options.Timestamps,
		Follow:     options.Follow,
	}
	switch {
	case options.SinceSeconds != nil:
		request.Since = now.Add(-time.Duration(*options.SinceSeconds) * time.Second)
	case options.SinceTime != nil:
		request.Since = options.SinceTime.Time
	}
	return request
}

// Reader reads log files. All its followers share one inotify instance, of which a
// user may have few. Its methods may be called from any goroutine.
type Reader struct {
	clock clock.WithTicker
	log   *slog.Logger
	watch watch
}

// NewReader returns a Reader; it holds nothing while nothing is followed. The
// defaults are the real clock and slog.Default().
func NewReader(c clock.WithTicker, log *slog.Logger) *Reader {
	if c == nil {
		c = clock.RealClock{}
	}
	if log == nil {
		log = slog.Default()
	}
	return &Reader{clock: c, log: log}
}

// Read writes the container's output as the request says. A nil writer leaves that
// stream out. It returns nil at the end, and also when a writer's limit is reached;
// a follower whose context ends returns the context's error.
func (r *Reader) Read(ctx context.Context, request Request, stdout, stderr io.Writer) error {
	path, err := filepath.EvalSymlinks(request.Path)
	if errors.Is(err, os.ErrNotExist) && request.Missing != nil {
		if err := request.Missing(); err != nil {
			return err
		}
		path, err = filepath.EvalSymlinks(request.Path)
	}
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", request.Path, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("failed to open log file %q: %w", path, err)
	}
	s := &session{
		reader: r, request: request, path: path,
		out:     newPrinter(request, stdout, stderr),
		current: newSource(file),
		left:    math.MaxInt64,
	}
	defer s.close()
	if request.Tail != nil {
		if err := seekTail(file, *request.Tail); err != nil {
			return fmt.Errorf("failed to tail %d lines of log file %q: %w", *request.Tail, path, err)
		}
		if !request.Follow {
			// What is written meanwhile must not make it more.
			s.left = *request.Tail
		}
	}
	if request.Follow {
		err = s.follow(ctx)
	} else {
		err = s.finish()
	}
	if request.Flush != nil {
		request.Flush()
	}
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// printer applies since, timestamps and the limit.
type printer struct {
	stdout, stderr io.Writer
	since          time.Time
	timestamps     bool
	remain         int64
	inLine         map[runtimeapi.LogStreamType]bool // the last thing printed was a part
	line           []byte
}

// errLimit says that as many bytes are written as were asked for.
var errLimit = errors.New("byte limit reached")

func newPrinter(request Request, stdout, stderr io.Writer) *printer {
	p := &printer{
		stdout: stdout, stderr: stderr,
		since:      request.Since,
		timestamps: request.Timestamps,
		remain:     math.MaxInt64,
		inLine:     map[runtimeapi.LogStreamType]bool{},
	}
	if request.Limit != nil {
		p.remain = *request.Limit
	}
	return p
}

func (p *printer) print(e entry) error {
	begins := !p.inLine[e.stream]
	p.inLine[e.stream] = len(e.text) > 0 && e.text[len(e.text)-1] != '\n'
	if e.time.Before(p.since) {
		return nil
	}
	to := p.stdout
	if e.stream == runtimeapi.Stderr {
		to = p.stderr
	}
	if to == nil {
		return nil
	}
	p.line = p.line[:0]
	if p.timestamps && begins {
		p.line = append(e.time.AppendFormat(p.line, stampFormat), ' ')
	}
	p.line = append(p.line, e.text...)
	if int64(len(p.line)) > p.remain {
		p.line = p.line[:p.remain]
	}
	written, err := to.Write(p.line)
	p.remain -= int64(written)
	switch {
	case err != nil:
		return err
	case p.remain <= 0:
		return errLimit
	}
	return nil
}

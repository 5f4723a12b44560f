package logs

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// session is one reading of one log.
type session struct {
	reader  *Reader
	request Request
	path    string
	out     *printer
	left    int64 // lines that may still be printed
	current *source
	// before is the file that a rotation has replaced. The runtime may write into
	// it until it uses the new one, so it counts as open until that has a line.
	before *source
}

// source is an open file and how far it is read.
type source struct {
	file    *os.File
	lines   *bufio.Reader
	pending []byte // a line whose end is not there yet
}

func newSource(file *os.File) *source {
	return &source{file: file, lines: bufio.NewReader(file)}
}

// openSource opens a log file, compressed or not; one that was compressed in the
// meantime is found under its new name.
func openSource(name string) (*source, error) {
	file, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		name += compressedSuffix
		file, err = os.Open(name)
	}
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(name, compressedSuffix) {
		return newSource(file), nil
	}
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &source{file: file, lines: bufio.NewReader(unzipped)}, nil
}

// next returns a whole line, or io.EOF while there is none. The line is good until
// the next call.
func (s *source) next() ([]byte, error) {
	if n := len(s.pending); n > 0 && s.pending[n-1] == '\n' {
		s.pending = s.pending[:0]
	}
	part, err := s.lines.ReadBytes('\n')
	s.pending = append(s.pending, part...)
	if err != nil {
		return nil, err
	}
	return s.pending, nil
}

// rest returns what is behind the last newline.
func (s *source) rest() []byte {
	if n := len(s.pending); n > 0 && s.pending[n-1] == '\n' {
		return nil
	}
	return s.pending
}

func (s *session) close() {
	s.current.file.Close()
	if s.before != nil {
		s.before.file.Close()
	}
}

// drain prints all whole lines that are there.
func (s *session) drain() error {
	if s.before != nil {
		if err := s.drainSource(s.before, false); err != nil {
			return err
		}
	}
	return s.drainSource(s.current, false)
}

// drainSource prints the whole lines of one file and, at the very end, what is behind
// the last newline.
func (s *session) drainSource(from *source, atEnd bool) error {
	for s.left > 0 {
		line, err := from.next()
		if errors.Is(err, io.EOF) {
			if line = from.rest(); atEnd && len(line) > 0 {
				return s.print(line)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("failed to read log file %q: %w", s.path, err)
		}
		if from == s.current {
			if err := s.leaveBefore(); err != nil {
				return err
			}
		}
		if err := s.print(line); err != nil {
			return err
		}
	}
	return nil
}

// leaveBefore prints what else came into the replaced file, and closes it.
func (s *session) leaveBefore() error {
	if s.before == nil {
		return nil
	}
	before := s.before
	s.before = nil
	defer before.file.Close()
	return s.drainSource(before, true)
}

// finish prints everything, a last line without a newline included.
func (s *session) finish() error {
	if err := s.drain(); err != nil {
		return err
	}
	if err := s.leaveBefore(); err != nil {
		return err
	}
	return s.drainSource(s.current, true)
}

func (s *session) print(line []byte) error {
	s.left--
	parsed, err := parse(line)
	if err != nil {
		s.reader.log.Warn("line left out of a log", "path", s.path, "err", err)
		return nil
	}
	return s.out.print(parsed)
}

func (s *session) follow(ctx context.Context) error {
	changes, unwatch, err := s.reader.watch.add(s.path)
	if err != nil {
		return err
	}
	defer unwatch()
	ended := s.request.Ended
	check := s.reader.clock.NewTicker(checkPeriod)
	defer check.Stop()
	// A change of the file says nothing about the container, and may come a thousand
	// times a second.
	running, ask := true, true
	for {
		// Asked before reading: what a container that has ended wrote is all there.
		if ask {
			if running, err = s.request.Running(ctx); err != nil {
				return err
			}
		}
		if err := s.catchUp(); err != nil {
			return err
		}
		if !running {
			return s.finish()
		}
		if s.request.Flush != nil {
			s.request.Flush()
		}
		select {
		case <-changes:
			ask = false
		case <-ended:
			ended, ask = nil, true // once is enough
		case <-check.C():
			ask = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// catchUp prints what is there, in the file and in those that have replaced it.
func (s *session) catchUp() error {
	for {
		if err := s.drain(); err != nil {
			return err
		}
		switched, err := s.switchFile()
		if err != nil || !switched {
			return err
		}
	}
}

// switchFile goes over to a new file under the same name, or back to the start of one
// that was cut.
func (s *session) switchFile() (bool, error) {
	named, err := os.Stat(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // renamed, and the new one is not there yet
	}
	if err != nil {
		return false, fmt.Errorf("failed to look for log file %q: %w", s.path, err)
	}
	open, err := s.current.file.Stat()
	if err != nil {
		return false, fmt.Errorf("failed to look at log file %q: %w", s.path, err)
	}
	if os.SameFile(named, open) {
		return s.rewind(open.Size())
	}
	// Opened before the others are listed: if it is rotated in between, it is in the
	// list, and if the list ends with ours, it is the one that follows ours.
	next, err := openSource(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("failed to open log file %q: %w", s.path, err)
	}
	if skipped := s.following(open); skipped != nil {
		next.file.Close()
		next = skipped
	}
	// Nobody writes into the one before the last any more.
	if err := s.leaveBefore(); err != nil {
		next.file.Close()
		return false, err
	}
	s.before, s.current = s.current, next
	return true, nil
}

// following opens the rotated file that came after the open one, if there is one: who
// reads slowly may be several rotations behind.
func (s *session) following(open os.FileInfo) *source {
	older, _, err := rotated(s.path)
	if err != nil {
		return nil
	}
	for i, name := range older[:max(len(older)-1, 0)] {
		if !isFile(name, open) {
			continue
		}
		next, err := openSource(older[i+1])
		if err != nil {
			s.reader.log.Warn("part of a log is left out", "path", older[i+1], "err", err)
			return nil
		}
		return next
	}
	return nil
}

func (s *session) rewind(size int64) (bool, error) {
	at, err := s.current.file.Seek(0, io.SeekCurrent)
	if err != nil || at <= size {
		return false, err
	}
	if _, err := s.current.file.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	s.current = newSource(s.current.file)
	return true, nil
}

package sim

import (
	"io"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stream is one of a container's output streams: it goes into the log and to
// everybody attached.
type stream struct {
	runtime *Runtime
	c       *container
	name    runtimeapi.LogStreamType
}

func (r *Runtime) output(c *container, name runtimeapi.LogStreamType) io.Writer {
	return &stream{runtime: r, c: c, name: name}
}

func (s *stream) Write(text []byte) (int, error) {
	if err := s.c.logTo(s.name, text, s.runtime.clock.Now()); err != nil {
		s.runtime.log.Warn("simulated log not written", "path", s.c.logPath, "err", err)
	}
	s.c.logMu.Lock()
	defer s.c.logMu.Unlock()
	for seen := range s.c.viewers {
		seen.add(s.name, text)
	}
	return len(text), nil
}

// print writes a line to the container's stdout.
func (r *Runtime) print(c *container, line string) {
	io.WriteString(r.output(c, runtimeapi.Stdout), line+"\n")
}

// viewer holds what one who is attached has not read yet: reading slowly holds up
// nobody.
type viewer struct {
	mu      sync.Mutex
	waiting []chunk
	arrived chan struct{} // capacity 1
}

type chunk struct {
	name runtimeapi.LogStreamType
	text []byte
}

func (c *container) watchOutput() *viewer {
	added := &viewer{arrived: make(chan struct{}, 1)}
	c.logMu.Lock()
	defer c.logMu.Unlock()
	if c.viewers == nil {
		c.viewers = map[*viewer]struct{}{}
	}
	c.viewers[added] = struct{}{}
	return added
}

func (c *container) unwatchOutput(gone *viewer) {
	c.logMu.Lock()
	defer c.logMu.Unlock()
	delete(c.viewers, gone)
}

func (v *viewer) add(name runtimeapi.LogStreamType, text []byte) {
	v.mu.Lock()
	v.waiting = append(v.waiting, chunk{name: name, text: append([]byte{}, text...)})
	v.mu.Unlock()
	select {
	case v.arrived <- struct{}{}:
	default:
	}
}

// drain writes what has arrived; nil writers are not wanted.
func (v *viewer) drain(stdout, stderr io.Writer) error {
	v.mu.Lock()
	taken := v.waiting
	v.waiting = nil
	v.mu.Unlock()
	for _, part := range taken {
		to := stdout
		if part.name == runtimeapi.Stderr {
			to = stderr
		}
		if to == nil {
			continue
		}
		if _, err := to.Write(part.text); err != nil {
			return err
		}
	}
	return nil
}

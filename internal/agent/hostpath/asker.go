package hostpath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"mend/internal/agent/volume"
)

const (
	// Limit is how long a path may take to answer. A disk under load takes a second.
	Limit = 10 * time.Second
	// slack is for the child to start and to end.
	slack = 2 * time.Second
	// fresh is how long an answer goes for the next question whether a path answers:
	// the volumes of a Pod are set up just before its containers are created.
	fresh = 5 * time.Second
)

// Asker is [volume.HostPaths] for a node that runs real containers. Its methods may be
// called from any goroutine.
type Asker struct {
	clock clock.Clock
	// child makes the command that asks.
	child func(args ...string) *exec.Cmd
	limit time.Duration

	mu    sync.Mutex
	paths map[string]*path
}

var _ volume.HostPaths = (*Asker)(nil)

// path is what is known of one path of the host.
type path struct {
	asks     map[string]*ask // under way, by question
	answered time.Time
}

// ask is one child. out and err are set when done is closed.
type ask struct {
	since time.Time
	done  chan struct{}
	out   string
	err   error
}

// NewAsker makes one that starts this program for each question.
func NewAsker(c clock.Clock) *Asker {
	return &Asker{clock: c, child: self, limit: Limit, paths: map[string]*path{}}
}

// self is this very program, also after its file was replaced.
func self(args ...string) *exec.Cmd {
	child := exec.Command("/proc/self/exe", append([]string{ChildCommand}, args...)...)
	child.Dir = "/"
	child.Env = []string{}
	return child
}

// Check implements [volume.HostPaths].
func (a *Asker) Check(ctx context.Context, source *v1.HostPathVolumeSource) error {
	kind := v1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	_, err := a.ask(ctx, source.Path, doCheck, string(kind), source.Path)
	return err
}

// Answers implements [volume.HostPaths].
func (a *Asker) Answers(ctx context.Context, path string) error {
	a.mu.Lock()
	known := a.paths[path]
	recently := known != nil && a.clock.Since(known.answered) < fresh && !a.overdue(known)
	a.mu.Unlock()
	if recently {
		return nil
	}
	return a.Check(ctx, &v1.HostPathVolumeSource{Path: path})
}

// SubPath implements [volume.HostPaths].
func (a *Asker) SubPath(ctx context.Context, path, sub, target string) (string, error) {
	if err := a.Answers(ctx, path); err != nil {
		return "", err
	}
	return a.ask(ctx, path, doSubPath, path, sub, target)
}

// ask waits for the answer to a question about a path, or for ctx.
func (a *Asker) ask(ctx context.Context, path string, question ...string) (string, error) {
	one := a.begin(path, question)
	if one == nil {
		return "", a.hangs(path)
	}
	select {
	case <-one.done:
		if errors.Is(one.err, volume.ErrNoAnswer) {
			return "", a.hangs(path)
		}
		return one.out, one.err
	case <-ctx.Done():
		return "", ctx.Err()
	case <-a.clock.After(a.limit + slack - a.clock.Since(one.since)):
		return "", a.hangs(path)
	}
}

// begin joins who asks the same already, or starts a child. It returns nil where an
// earlier one cannot be ended.
func (a *Asker) begin(name string, question []string) *ask {
	key := strings.Join(question, "\x00")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget()
	known := a.paths[name]
	if known == nil {
		known = &path{asks: map[string]*ask{}}
		a.paths[name] = known
	}
	if a.overdue(known) {
		return nil
	}
	if one := known.asks[key]; one != nil {
		return one
	}
	one := &ask{since: a.clock.Now(), done: make(chan struct{})}
	known.asks[key] = one
	go func() {
		one.out, one.err = run(a.child(append([]string{a.limit.String()}, question...)...))
		a.mu.Lock()
		delete(known.asks, key)
		if !errors.Is(one.err, volume.ErrNoAnswer) {
			known.answered = a.clock.Now()
		}
		a.mu.Unlock()
		close(one.done)
	}()
	return one
}

// overdue says whether a child of the path cannot be ended. Callers hold a.mu.
func (a *Asker) overdue(known *path) bool {
	for _, one := range known.asks {
		if a.clock.Since(one.since) >= a.limit+slack {
			return true
		}
	}
	return false
}

// forget drops paths that nobody asks for. Callers hold a.mu.
func (a *Asker) forget() {
	for name, known := range a.paths {
		if len(known.asks) == 0 && a.clock.Since(known.answered) >= fresh {
			delete(a.paths, name)
		}
	}
}

// run returns what the child printed, which is its answer or, with an exit code, why
// there is none.
func run(child *exec.Cmd) (string, error) {
	var out bytes.Buffer
	child.Stdout = &out
	err := child.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return out.String(), nil
	case errors.As(err, &ended) && ended.ExitCode() == exitRefused:
		return "", errors.New(out.String())
	case errors.As(err, &ended) && ended.ExitCode() == exitHangs:
		return "", volume.ErrNoAnswer
	}
	return "", fmt.Errorf("ask the host's file system: %w", err)
}

// hangs is the error for a path that does not answer. It is always the same for one
// path, so that its events are counted as one.
func (a *Asker) hangs(path string) error {
	return fmt.Errorf("hostPath %s %w within %s: %s hangs; bring back what serves it, or end it with umount -f",
		path, volume.ErrNoAnswer, a.limit, describeMount(path))
}

// describeMount names the mount that a path lies on, without a look at the path:
// links are not followed.
func describeMount(path string) string {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !below(path, m.Mountpoint), false
	})
	last := &mountinfo.Info{Mountpoint: "/"}
	for _, m := range mounts {
		if len(m.Mountpoint) >= len(last.Mountpoint) {
			last = m
		}
	}
	if err != nil || last.Mountpoint == "/" { // a link leads to it
		return "its file system"
	}
	return fmt.Sprintf("the file system at %s (%s of %s)", last.Mountpoint, last.FSType, last.Source)
}

func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

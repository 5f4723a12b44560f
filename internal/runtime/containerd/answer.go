package containerd

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// answerEvery is how often containerd is asked for its version, and answerLimit how
	// long that may take.
	answerEvery = 10 * time.Second
	answerLimit = 5 * time.Second
	// silenceMost is how long it may give no answer before it is killed and started
	// again, which its containers do not notice. A machine that is only slow answers one
	// of four questions.
	silenceMost = 30 * time.Second
)

// listen notes whether containerd answers, and kills one that has been silent for too
// long: its end then has the watch start another.
func (s *Supervisor) listen(r *running) {
	err := s.ask(s.watchCtx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.silent = time.Time{}
	case s.silent.IsZero():
		s.silent = time.Now()
		s.cfg.Log.Warn("containerd does not answer", "pid", r.pid, "err", err)
	case s.watchCtx.Err() == nil && time.Since(s.silent) >= silenceMost:
		s.cfg.Log.Error("containerd has not answered for too long; it is ended", "pid", r.pid, "err", err)
		s.silent = time.Time{}
		if err := r.signal(unix.SIGKILL); err != nil {
			s.cfg.Log.Error("end containerd", "pid", r.pid, "err", err)
		}
	}
}

func (s *Supervisor) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := dial(s.Endpoint())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

// Silence is for how long containerd has given no answer; zero if it answers.
func (s *Supervisor) Silence() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent.IsZero() {
		return 0
	}
	return time.Since(s.silent)
}

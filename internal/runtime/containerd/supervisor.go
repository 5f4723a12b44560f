package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"mend/internal/instance"
	"mend/internal/runtime/cleanup"
)

const (
	// startLimit bounds the wait for a started containerd to answer over CRI. It takes
	// 0.1 s; a cold disk and a thousand containers to look up can take seconds.
	startLimit = time.Minute
	// adoptLimit is the same for one that runs: if it does not answer by then it hangs.
	adoptLimit = 5 * time.Second
	// stopGrace is how long containerd may take to end after SIGTERM, hungGrace how long
	// one may that does not answer.
	stopGrace = 10 * time.Second
	hungGrace = time.Second
	// backoffMost is the longest pause between two starts, healthyAfter the run after
	// which the next death counts as the first.
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 10 * time.Second
	healthyAfter = time.Minute
	// hurryCheck is how often who is in a hurry looks whether containerd runs.
	hurryCheck = 20 * time.Millisecond
	// logCheckEvery is how often the size of containerd's log is looked at.
	logCheckEvery = time.Hour
)

// Supervisor is a running containerd and what watches it.
type Supervisor struct {
	cfg      Config
	bin      string
	bundleID string
	config   string // hash of the configuration
	lock     *os.File

	// watchCtx ends when the supervision does; it is no request's context.
	watchCtx context.Context
	cancel   context.CancelFunc
	watched  chan struct{}
	hurry    chan struct{} // cuts the pause before the next start short

	mu       sync.Mutex
	current  *running
	restarts int
	silent   time.Time // since when it gives no answer
}

// running is one containerd process. exited is closed when it has ended and, if it is
// our child, has been reaped.
type running struct {
	*process
	adopted bool
	since   time.Time
	exited  chan struct{}
}

// Start unpacks the programs, writes the configuration and makes sure that a
// containerd with both is running: it adopts the one that an earlier mend left, or
// starts one. It returns when CRI answers. ctx bounds only this call.
//
// Errors say in one line what is wrong: a mend without payload (bundle.ErrEmpty), a
// data directory that is mounted noexec, another mend that watches the same instance,
// or the end of containerd's log when it does not come up.
func Start(ctx context.Context, cfg Config) (*Supervisor, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	bundle, err := Bundle()
	if err != nil {
		return nil, err
	}
	if err := cfg.makeDirs(); err != nil {
		return nil, err
	}
	// Before containerd fails with something less clear.
	if err := instance.CheckExec(cfg.binParent()); err != nil {
		return nil, err
	}
	lock, err := cfg.lock()
	if err != nil {
		return nil, err
	}
	s := &Supervisor{cfg: cfg, bundleID: bundle.ID(), lock: lock, watched: make(chan struct{}), hurry: make(chan struct{})}
	if s.bin, err = bundle.Unpack(cfg.binParent()); err == nil {
		err = errors.Join(cfg.dropEarlierBoot(), s.writeConfig())
	}
	var first *running
	if err == nil {
		first, err = s.adoptOrStart(ctx)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := s.endHalfStarted(limited); err != nil {
		cfg.Log.Error("what was half started stays", "err", err)
	}
	s.current = first
	s.watchCtx, s.cancel = context.WithCancel(context.Background())
	go s.watch(first)
	removeOldBundles(cfg, s.bundleID)
	return s, nil
}

func (c Config) makeDirs() error {
	for dir, mode := range map[string]os.FileMode{
		c.binParent(): 0o755, c.root(): 0o711, c.workDir(): 0o700, c.RegistryDir(): 0o700,
		c.state(): 0o711, c.shimSockets(): 0o711, c.runcRoot(): 0o711,
		filepath.Dir(c.LogFile()): 0o700,
	} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
	}
	return nil
}

// dropEarlierBoot empties what containerd keeps in the run directory when it stems from
// an earlier boot, for machines whose /run is on a disk: the processes, mounts and
// sockets that it speaks of are gone.
func (c Config) dropEarlierBoot() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	file := filepath.Join(c.RunDir, "boot")
	was, err := os.ReadFile(file)
	if err == nil && string(was) == boot {
		return nil
	}
	if err == nil {
		for _, dir := range []string{c.state(), c.shimSockets(), c.runcRoot()} {
			if err := errors.Join(cleanup.Unmount(dir), cleanup.RemoveTree(dir)); err != nil {
				return err
			}
		}
		if err := errors.Join(remove(c.recordFile()), c.makeDirs()); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(boot), 0o600)
}

func (s *Supervisor) writeConfig() error {
	snapshotter, err := chooseSnapshotter(s.cfg)
	if err != nil {
		return err
	}
	text, err := settings{
		Config: s.cfg, Bin: s.bin, Snapshotter: snapshotter, SandboxImage: SandboxImage,
		RestrictOOMScore: !mayLowerOOMScore(), DisabledPlugins: disabledPlugins,
	}.render()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(text))
	s.config = hex.EncodeToString(sum[:])
	return os.WriteFile(s.cfg.configFile(), []byte(text), 0o600)
}

// adoptOrStart finds the containerd of an earlier mend. If it was started with other
// programs or settings it is ended first, which its containers do not notice.
func (s *Supervisor) adoptOrStart(ctx context.Context) (*running, error) {
	rec := s.cfg.readRecord()
	p, err := rec.find()
	if errors.Is(err, errGone) {
		// No record, or a wrong one: mend was killed between starting containerd and
		// writing it down. The socket knows.
		rec = record{}
		p, err = s.findListener()
	}
	if errors.Is(err, errGone) {
		r, err := s.start(ctx)
		if errors.Is(err, errOtherListens) {
			return s.adoptOrStart(ctx)
		}
		return r, err
	}
	if err != nil {
		return nil, err
	}
	r := &running{process: p, adopted: true, since: time.Now(), exited: make(chan struct{})}
	go r.watchAdopted(s.cfg.Log)
	grace := stopGrace
	if rec.Bundle == s.bundleID && rec.Config == s.config {
		if err = s.waitReady(ctx, r, adoptLimit); err == nil {
			s.cfg.Log.Info("adopted the running containerd", "pid", r.pid)
			return r, nil
		}
		s.cfg.Log.Warn("the running containerd does not answer; it is started anew", "pid", r.pid, "err", err)
		grace = hungGrace
	} else {
		s.cfg.Log.Info("restarting containerd with this mend's programs and settings", "pid", r.pid)
	}
	if err := r.finish(ctx, grace); err != nil {
		return nil, fmt.Errorf("end the earlier containerd (process %d): %w", r.pid, err)
	}
	return s.start(ctx)
}

func (s *Supervisor) findListener() (*process, error) {
	pid, err := listener(s.cfg.socket())
	if err != nil {
		return nil, err
	}
	return openProcess(pid)
}

// finish ends the process if it runs, and lets go of it.
func (r *running) finish(ctx context.Context, grace time.Duration) error {
	select {
	case <-r.exited:
	default:
		if err := r.end(ctx, grace); err != nil {
			return err
		}
		<-r.exited
	}
	r.close()
	return nil
}

// watchAdopted closes exited when the process, which is not our child, has ended.
func (r *running) watchAdopted(log *slog.Logger) {
	defer close(r.exited)
	if err := r.wait(context.Background()); err != nil {
		log.Error("watching containerd failed", "err", err)
	}
}

// start starts containerd and waits until it answers.
func (s *Supervisor) start(ctx context.Context) (*running, error) {
	r, err := s.spawn()
	if err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx, r, startLimit); err != nil {
		endErr := r.finish(ctx, stopGrace)
		return nil, errors.Join(fmt.Errorf("containerd does not come up: %w%s", err, s.cfg.logTail()), endErr)
	}
	// Another one answered on our socket while ours waits for its database: one that
	// was coming up, unrecorded, when we looked.
	if pid, err := listener(s.cfg.socket()); err == nil && pid != r.pid {
		return nil, errors.Join(errOtherListens, r.finish(ctx, stopGrace), remove(s.cfg.recordFile()))
	}
	return r, nil
}

var errOtherListens = errors.New("another containerd listens on the instance's socket")

func (s *Supervisor) spawn() (*running, error) {
	truncateLog(s.cfg.LogFile())
	out, err := os.OpenFile(s.cfg.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(s.bin, "containerd"), "--config", s.cfg.configFile())
	cmd.Dir = s.cfg.workDir()
	cmd.Env = environment(s.bin)
	cmd.Stdout, cmd.Stderr = out, out
	// A session of its own: no signal of mend's terminal or end reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	r := &running{since: time.Now(), exited: make(chan struct{})}
	err = s.writeDown(cmd.Process.Pid)
	if err == nil {
		r.process, err = openProcess(cmd.Process.Pid)
	}
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	go func() {
		defer close(r.exited)
		// How it ended is in its log; that it ended is what we act on.
		_ = cmd.Wait()
	}()
	return r, nil
}

func (s *Supervisor) writeDown(pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	return s.cfg.writeRecord(record{PID: pid, Start: start, BootID: boot, Bundle: s.bundleID, Config: s.config})
}

// environment keeps the caller's proxy settings, which pulls need, and nothing that
// would turn libraries in containerd elsewhere. The limits on its heap are for the idle
// machine: containerd's live heap is some 10 MB.
func environment(bin string) []string {
	env := []string{"PATH=" + bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "GOGC=40", "GOMEMLIMIT=96MiB"}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR", "LANG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// watch starts containerd again whenever it dies, until the supervision ends.
func (s *Supervisor) watch(r *running) {
	defer close(s.watched)
	logCheck := time.NewTicker(logCheckEvery)
	defer logCheck.Stop()
	answerCheck := time.NewTicker(answerEvery)
	defer answerCheck.Stop()
	pause := time.Duration(0)
	for {
		select {
		case <-s.watchCtx.Done():
			return
		case <-logCheck.C:
			truncateLog(s.cfg.LogFile())
			continue
		case <-answerCheck.C:
			s.listen(r)
			continue
		case <-r.exited:
		}
		if s.watchCtx.Err() != nil {
			return
		}
		if time.Since(r.since) > healthyAfter {
			pause = 0
		}
		s.cfg.Log.Error("containerd died; it is started again", "pid", r.pid, "after", pause)
		r.close()
		if r = s.startAgain(&pause); r == nil {
			return
		}
	}
}

// startAgain tries until containerd runs; it returns nil when the supervision ends.
func (s *Supervisor) startAgain(pause *time.Duration) *running {
	for {
		select {
		case <-s.watchCtx.Done():
			return nil
		case <-time.After(*pause):
		case <-s.hurry:
		}
		*pause = min(max(2*(*pause), backoffFirst), backoffMost)
		r, err := s.start(s.watchCtx)
		if err == nil {
			s.mu.Lock()
			s.current, s.restarts = r, s.restarts+1
			s.mu.Unlock()
			s.cfg.Log.Info("containerd runs again", "pid", r.pid)
			return r
		}
		if s.watchCtx.Err() == nil {
			s.cfg.Log.Error("containerd could not be started", "err", err, "next", *pause)
		}
	}
}

// Hurry returns when containerd runs: if it waits to be started again, it is started
// now. It returns the context's error when that does not succeed in time.
func (s *Supervisor) Hurry(ctx context.Context) error {
	hurry := s.hurry
	for {
		s.mu.Lock()
		r := s.current
		s.mu.Unlock()
		select {
		case <-r.exited:
		default:
			return nil
		}
		select {
		case hurry <- struct{}{}: // taken only in a pause
			hurry = nil // once: one that dies again and again still backs off
		case <-time.After(hurryCheck):
		case <-s.watched:
			return errors.New("containerd is not watched any more")
		case <-ctx.Done():
			return fmt.Errorf("containerd does not run: %w", ctx.Err())
		}
	}
}

// Endpoint is containerd's CRI and API socket, as unix:///path.
func (s *Supervisor) Endpoint() string { return "unix://" + s.cfg.socket() }

// Socket is the same as a path.
func (s *Supervisor) Socket() string { return s.cfg.socket() }

// BinDir holds the unpacked programs.
func (s *Supervisor) BinDir() string { return s.bin }

// PID is the process id of the containerd that runs now or ran last.
func (s *Supervisor) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.pid
}

// Adopted reports whether the containerd that runs now was started by an earlier mend.
func (s *Supervisor) Adopted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.adopted
}

// Restarts counts how often containerd died and was started again.
func (s *Supervisor) Restarts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restarts
}

// Release ends the supervision and leaves containerd and its containers running, for a
// later Start to adopt.
func (s *Supervisor) Release() {
	s.cancel()
	<-s.watched
	s.lock.Close()
}

// Stop ends the supervision and containerd itself. Containers go on: end them before,
// through the agent or StopPods.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.cancel()
	<-s.watched
	defer s.lock.Close()
	s.mu.Lock()
	r := s.current
	s.mu.Unlock()
	if err := r.finish(ctx, stopGrace); err != nil {
		return fmt.Errorf("end containerd (process %d): %w", r.pid, err)
	}
	return errors.Join(remove(s.cfg.recordFile()), remove(s.cfg.socket()))
}

// remove deletes a file that may be gone.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

package store

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	// CompactionInterval is the age at which old revisions are dropped. A list
	// that is continued later than that gets 410 Expired and a fresh token.
	CompactionInterval = 5 * time.Minute

	// The store refuses writes above this size (NOSPACE) until it is compacted.
	quotaBytes = 4 << 30

	// A file with at least this much free space inside is rewritten at start.
	defragThresholdMegabytes = 8

	startTimeout = 60 * time.Second
)

// Config says where the store lives.
type Config struct {
	// DataDir is the store's own directory, of a format that the caller has checked;
	// it and "etcd" in it are created with mode 0700 when they are missing.
	DataDir string
	// Log receives warnings and errors of the store; nil means slog.Default().
	Log *slog.Logger
	// UnsafeNoFsync answers writes before they are on disk. For tests only.
	UnsafeNoFsync bool
}

// Store is a running etcd member. Its methods may be called from any goroutine.
type Store struct {
	etcd   *embed.Etcd
	client *clientv3.Client
	log    *slog.Logger
	space  *space

	closing sync.Once
	closed  error
}

// Open starts the store and returns when it serves. It fails with a one-line
// error when the directory is not writable or cannot be read; the state in it is then
// unchanged.
func Open(config Config) (*Store, error) {
	if config.DataDir == "" {
		return nil, errors.New("store: no data directory given")
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if err := os.MkdirAll(config.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("store: data directory: %w", err)
	}
	dir := filepath.Join(config.DataDir, "etcd")
	last := newLastWords()
	var etcd *embed.Etcd
	first, err := begin(config.DataDir)
	if err == nil {
		err = checkLog(dir)
	}
	if err == nil {
		etcd, err = start(etcdConfig(dir, config, last), last)
	}
	if err == nil && first {
		etcd.Server.KV().Commit()
		if err = begun(config.DataDir); err != nil {
			etcd.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("store: %s cannot be opened: %s; mend snapshot restore brings back what mend snapshot list shows, or move it away to begin with an empty cluster", dir, oneLine(err))
	}
	s := &Store{etcd: etcd, client: v3client.New(etcd.Server), log: config.Log, space: newSpace(dir)}
	s.client.KV = guarded{KV: s.client.KV, space: s.space}
	if err := s.disarmAlarms(); err != nil {
		s.log.Warn("store alarms could not be read", "err", err)
	}
	return s, nil
}

// Client reaches the store in process. It has no endpoints and must not be
// closed by its users.
func (s *Store) Client() *clientv3.Client { return s.client }

// Close ends the store; writes that were answered are on disk. Closing again
// does nothing.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.closed = s.client.Close()
		s.etcd.Close()
		if errors.Is(s.closed, context.Canceled) {
			s.closed = nil
		}
	})
	return s.closed
}

// Failed gives the error that ended the store by itself.
func (s *Store) Failed() <-chan error { return s.etcd.Err() }

// Health is nil when the store answers a consistent read and accepts writes.
// The error names what is wrong: no leader, no room on the file system, or NOSPACE
// with the sizes.
func (s *Store) Health(ctx context.Context) error {
	if _, err := s.client.Get(ctx, "health"); err != nil {
		return fmt.Errorf("store does not answer: %w", err)
	}
	if err := s.space.check(); err != nil {
		return err
	}
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("store alarms: %w", err)
	}
	for _, alarm := range alarms.Alarms {
		return fmt.Errorf("store refuses writes: %s (%d MiB used of %d MiB)", alarm.Alarm,
			s.etcd.Server.Backend().Size()>>20, int64(quotaBytes)>>20)
	}
	return nil
}

// Size is the size of the database file and the part of it in use, in bytes.
func (s *Store) Size() (file, used int64) {
	backend := s.etcd.Server.Backend()
	return backend.Size(), backend.SizeInUse()
}

// disarmAlarms lifts NOSPACE when the defragmentation at start made room.
func (s *Store) disarmAlarms() error {
	if s.etcd.Server.Backend().Size() > quotaBytes*9/10 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	alarms, err := s.client.AlarmList(ctx)
	if err != nil || len(alarms.Alarms) == 0 {
		return err
	}
	_, err = s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	return err
}

func etcdConfig(dir string, config Config, last *lastWords) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "mend"
	cfg.Dir = dir
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.QuotaBackendBytes = quotaBytes
	cfg.BootstrapDefragThresholdMegabytes = defragThresholdMegabytes
	cfg.UnsafeNoFsync = config.UnsafeNoFsync
	// A lone member needs no heartbeat and stands for election at once (decision 10), and
	// what is not in the database yet is in the log: neither clock need wake the machine
	// ten times a second. Many writes are committed by their number.
	cfg.TickMs, cfg.ElectionMs = 500, 5000
	cfg.BackendBatchInterval, cfg.BackendBatchLimit = 500*time.Millisecond, 500
	// Raft's in-memory tail and the snapshots it forces are sized for clusters
	// with slow followers; a single member needs neither.
	cfg.SnapshotCount = 10000
	cfg.SnapshotCatchUpEntries = 1000
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(config.Log, last))
	return cfg
}

// starting lets one store of a process start at a time: etcd publishes raft's
// status for the member that was made last.
var starting sync.Mutex

// start runs embed.StartEtcd and waits until it serves. What it panics with is an
// error too.
func start(cfg *embed.Config, last *lastWords) (*embed.Etcd, error) {
	starting.Lock()
	defer starting.Unlock()
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				started <- result{err: fmt.Errorf("%v", cause)}
			}
		}()
		etcd, err := embed.StartEtcd(cfg)
		started <- result{etcd, err}
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	var r result
	select {
	case r = <-started:
	case err := <-last.said:
		return nil, err
	case <-timeout.C:
		return nil, fmt.Errorf("no start within %s", startTimeout)
	}
	if r.err != nil {
		return nil, r.err
	}
	served := make(chan struct{})
	defer close(served)
	go standUntil(served, r.etcd)
	select {
	case <-r.etcd.Server.ReadyNotify():
		last.started.Store(true)
		return r.etcd, nil
	case err := <-last.said:
		return nil, err
	case err := <-r.etcd.Err():
		return nil, err
	case <-timeout.C:
		r.etcd.Close()
		return nil, fmt.Errorf("not ready within %s", startTimeout)
	}
}

// standUntil stands for election until the store serves. It is a goroutine of its
// own because raft does not answer once it has panicked.
func standUntil(served <-chan struct{}, etcd *embed.Etcd) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		standForElection(etcd)
		select {
		case <-served:
			return
		case <-tick.C:
		}
	}
}

// caughtUp says whether raft has handed over every entry of the log that was
// committed before the start. Asked to stand earlier, it scans the rest of them for
// changes of membership, and panics when the server has compacted them meanwhile.
func caughtUp(etcd *embed.Etcd) bool {
	published, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	status, ok := published.Value().(raft.Status)
	return ok && status.ID == uint64(etcd.Server.MemberID()) &&
		status.Applied > 0 && status.Applied == status.HardState.GetCommit()
}

// standForElection makes the only member its own leader at once. It would do so
// by itself after half a second on average; a faster clock for raft would spare
// that too, but would then tick for ever: 100 wake-ups a second are 1 % of a core.
func standForElection(etcd *embed.Etcd) {
	server := etcd.Server
	if server.Lead() != 0 || !caughtUp(etcd) || len(server.Cluster().Members()) != 1 || server.AppliedIndex() < server.CommittedIndex() {
		return
	}
	self := uint64(server.MemberID())
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// The message by which a leader hands over; an error means that the member
	// is not ready to hear it, and the next tick says it again.
	_ = server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: &self, From: &self})
}

func oneLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return line
}

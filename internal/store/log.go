package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo hands etcd's warnings and errors to log, and what it gives up with to
// last.
func zapTo(log *slog.Logger, last *lastWords) *zap.Logger {
	return zap.New(&slogCore{log: log.With("component", "etcd")}, zap.WithPanicHook(last), zap.WithFatalHook(last))
}

// lastWords is what etcd says instead of returning an error: it panics, in
// goroutines of its own, or ends the process. While the store starts these
// become an error, and the goroutine that said them ends; later they are panics.
type lastWords struct {
	said    chan error
	started atomic.Bool
}

func newLastWords() *lastWords { return &lastWords{said: make(chan error, 1)} }

// OnWrite implements zapcore.CheckWriteHook.
func (l *lastWords) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	said := entry.Message
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(encoder)
	}
	if cause, ok := encoder.Fields["error"]; ok {
		said = fmt.Sprintf("%s: %v", said, cause)
	}
	if l.started.Load() {
		panic(said)
	}
	select {
	case l.said <- errors.New(said):
	default:
	}
	runtime.Goexit()
}

type slogCore struct {
	log *slog.Logger
}

func (c *slogCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{log: c.log.With(attrs(fields)...)}
}

func (c *slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// usual are warnings and errors of each start that mean nothing here: about ports that
// are not opened and tokens that are not used; of an empty database, which has no
// version yet; and, repeated without a pause until the log is applied, that a member
// cannot announce itself, which a lone one need not.
var usual = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
	"failed to publish local member to cluster through raft":                               true,
}

func (c *slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	switch {
	case usual[entry.Message]:
		level = slog.LevelDebug
	case entry.Level >= zapcore.ErrorLevel:
		level = slog.LevelError
	}
	c.log.Log(context.Background(), level, entry.Message, attrs(fields)...)
	return nil
}

func (c *slogCore) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(encoder)
	}
	args := make([]any, 0, 2*len(encoder.Fields))
	for key, value := range encoder.Fields {
		args = append(args, key, value)
	}
	return args
}

package store

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo hands etcd's warnings and errors to log. etcd's Fatal would end the
// process; here it panics, and [start] makes an error of that.
func zapTo(log *slog.Logger) *zap.Logger {
	return zap.New(&slogCore{log: log.With("component", "etcd")}, zap.WithFatalHook(zapcore.WriteThenPanic))
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

func (c *slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if entry.Level >= zapcore.ErrorLevel {
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

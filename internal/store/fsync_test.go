package store

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestEveryAnsweredWriteWasSynced reads etcd's own count of fsyncs of its log.
func TestEveryAnsweredWriteWasSynced(t *testing.T) {
	s := open(t, t.TempDir())
	before := walSyncs(t)
	const writes = 50
	for range writes {
		if _, err := s.Client().Put(limited(t), "/registry/a", "1"); err != nil {
			t.Fatal(err)
		}
	}
	if n := walSyncs(t) - before; n < writes {
		t.Errorf("%d writes one after another were answered after %d fsyncs", writes, n)
	}
}

func walSyncs(t *testing.T) uint64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "etcd_disk_wal_fsync_duration_seconds" {
			return family.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatal("etcd does not count its fsyncs")
	return 0
}

// TestOnlyTestsGoWithoutFsync: no mode of the program can turn it off, because no
// code outside tests sets what does.
func TestOnlyTestsGoWithoutFsync(t *testing.T) {
	if etcdConfig(t.TempDir(), Config{Log: slog.New(slog.DiscardHandler)}, newLastWords()).UnsafeNoFsync {
		t.Error("fsync is off without being asked")
	}
	root := filepath.Join("..", "..")
	files := 0
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && (entry.Name() == "testkit" || entry.Name() == "store" || entry.Name() == "payload") {
				return fs.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			files++
			text, err := os.ReadFile(path)
			if err == nil && strings.Contains(string(text), "NoFsync") {
				t.Errorf("%s turns fsync off", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 100 {
		t.Errorf("only %d files were looked at", files)
	}
}

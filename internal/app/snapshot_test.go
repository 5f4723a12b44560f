package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mend/internal/instance"
	"mend/internal/store"
	"mend/internal/version"
)

func TestTheScheduleKeepsADayAndWhatWasAskedFor(t *testing.T) {
	made, err := instance.Create(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(snapshotDir(made), 0o700); err != nil {
		t.Fatal(err)
	}
	for hour := range 30 {
		for _, why := range []string{hourly, "manual"} {
			name := fmt.Sprintf("20260101T%02d0000.000Z-%s.db", hour, why)
			if err := os.WriteFile(filepath.Join(snapshotDir(made), name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := dropOldSnapshots(made, snapshotsKept); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	entries, err := os.ReadDir(snapshotDir(made))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		count[strings.TrimSuffix(strings.SplitN(entry.Name(), "-", 2)[1], ".db")]++
	}
	if count[hourly] != 24 || count["manual"] != 30 || strings.HasPrefix(entries[0].Name(), "20260101T000000.000Z-hourly") {
		t.Errorf("left: %v", count)
	}
}

func TestAnotherVersionsStateIsSavedFirst(t *testing.T) {
	made, err := instance.Create(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := store.Open(store.Config{DataDir: made.Path("state"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	p := &process{instance: made, store: opened, log: newLog(io.Discard, false)}
	for _, tt := range []struct {
		left  string // what the last mend left as its version
		saved int    // snapshots after the start
	}{{"", 0}, {version.Version, 0}, {"0.0.9", 1}, {version.Version, 1}} {
		if tt.left != "" {
			if err := os.WriteFile(made.Path(versionFile), []byte(tt.left+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.snapshotBeforeUpgrade(context.Background()); err != nil {
			t.Fatal(err)
		}
		list, err := Snapshots(made)
		if err != nil || len(list) != tt.saved {
			t.Errorf("after version %q: %+v, %v", tt.left, list, err)
		}
		for _, one := range list {
			if one.Fault != "" || one.Bytes == 0 {
				t.Errorf("%+v", one)
			}
		}
	}
}

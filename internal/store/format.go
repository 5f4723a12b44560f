package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Format is the version of the data directory's layout that this mend writes. It
// grows when an older mend could no longer read what a newer one has written.
const Format = 1

// checkFormat refuses a directory written by a newer mend, and one whose stamp
// is not a number. A directory without a stamp is new.
func checkFormat(dataDir string) error {
	path := filepath.Join(dataDir, "format")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store: data format stamp: %w", err)
	}
	found, err := strconv.Atoi(strings.TrimSpace(string(text)))
	switch {
	case err != nil || found < 1:
		return fmt.Errorf("store: %s should hold a format number and does not; is %s mend's data directory?", path, dataDir)
	case found > Format:
		return fmt.Errorf("store: %s was written by a newer mend (data format %d, this one knows up to %d); use that mend, or another --data-dir", dataDir, found, Format)
	}
	return nil
}

// stampFormat writes the stamp aside, syncs and renames it, once.
func stampFormat(dataDir string) error {
	path := filepath.Join(dataDir, "format")
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	aside, err := os.CreateTemp(dataDir, ".format-*")
	if err != nil {
		return fmt.Errorf("store: data format stamp: %w", err)
	}
	defer os.Remove(aside.Name())
	_, err = fmt.Fprintln(aside, Format)
	err = errors.Join(err, aside.Sync(), aside.Close())
	if err == nil {
		err = os.Rename(aside.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("store: data format stamp: %w", err)
	}
	return nil
}

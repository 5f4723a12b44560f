package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mend/internal/runtime/cleanup"
)

// mayLowerOOMScore reports whether this process has CAP_SYS_RESOURCE, without which no
// process may be given a lower OOM score than its parent's.
func mayLowerOOMScore() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[unix.CAP_SYS_RESOURCE/32].Effective&(1<<(unix.CAP_SYS_RESOURCE%32)) != 0
}

// chooseSnapshotter is overlayfs where the data directory's file system can carry it,
// and else "native", which copies. The choice is kept: images are unpacked for it.
func chooseSnapshotter(cfg Config) (string, error) {
	kept := filepath.Join(cfg.root(), "snapshotter")
	if b, err := os.ReadFile(kept); err == nil {
		if name := strings.TrimSpace(string(b)); name == "overlayfs" || name == "native" {
			return name, nil
		}
	}
	name := "overlayfs"
	if err := tryOverlay(cfg.root()); err != nil {
		cfg.Log.Warn("the file system of the data directory does not support overlayfs; image layers are copied", "err", err)
		name = "native"
	}
	return name, os.WriteFile(kept, []byte(name+"\n"), 0o600)
}

// tryOverlay mounts an overlay below dir and unmounts it.
func tryOverlay(dir string) error {
	probe, err := os.MkdirTemp(dir, ".overlay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(probe)
	sub := map[string]string{}
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		sub[name] = filepath.Join(probe, name)
		if err := os.Mkdir(sub[name], 0o700); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", sub["lower"], sub["upper"], sub["work"])
	if err := unix.Mount("overlay", sub["merged"], "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay: %w", err)
	}
	return unix.Unmount(sub["merged"], 0)
}

const (
	logLimit  = 16 << 20
	tailLimit = 2000
)

// truncateLog copies a log that has grown beyond 16 MiB aside (one earlier is kept) and
// empties it. containerd appends to the same file all the while; a few lines between
// the two steps may be lost.
func truncateLog(path string) {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= logLimit {
		return
	}
	if err := copyFile(path, path+".1"); err != nil {
		// Better no earlier log than a full disk.
		_ = os.Remove(path + ".1")
	}
	_ = os.Truncate(path, 0)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// logTail is the end of containerd's log for an error message, or nothing.
func (c Config) logTail() string {
	f, err := os.Open(c.LogFile())
	if err != nil {
		return ""
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, end-tailLimit), io.SeekStart)
	}
	b, _ := io.ReadAll(f)
	if b = bytes.TrimSpace(b); len(b) == 0 {
		return ""
	}
	return fmt.Sprintf("\nthe end of %s:\n%s", c.LogFile(), b)
}

// removeOldBundles deletes the programs of other mends that no process runs from. A
// shim keeps its version for as long as its Pod lives.
func removeOldBundles(cfg Config, current string) {
	entries, err := os.ReadDir(cfg.binParent())
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(cfg.binParent(), e.Name())
		if !e.IsDir() || e.Name() == current || len(e.Name()) != len(current) {
			continue
		}
		if users, err := cleanup.ProgramsBelow(dir); err != nil || len(users) > 0 {
			continue
		}
		if err := cleanup.RemoveTree(dir); err != nil {
			cfg.Log.Warn("programs of an earlier mend could not be removed", "dir", dir, "err", err)
		}
	}
}

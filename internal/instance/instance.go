package instance

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Format is the layout of the data directory that this build reads and writes.
const Format = 1

const (
	stampFile = "format"
	stampWord = "mend-data-format"
	idFile    = "instance"
)

// Errors that commands tell apart. Their texts name the way out.
var (
	ErrNotOurs  = errors.New("carries no stamp of mend's")
	ErrNewer    = errors.New("was written by a newer mend")
	ErrNotThere = errors.New("holds no mend state")
	validID     = regexp.MustCompile(`^[0-9a-f]{6}$`)
	errBadStamp = errors.New("has a stamp that cannot be read")
)

// Instance is one data directory and the names derived from its id.
type Instance struct {
	ID  string // six hexadecimal digits
	Dir string // absolute path of the data directory
}

// Path joins a name below the data directory.
func (i Instance) Path(name ...string) string {
	return filepath.Join(append([]string{i.Dir}, name...)...)
}

// Kubeconfig is the administrator's kubeconfig inside the data directory.
func (i Instance) Kubeconfig() string { return i.Path("kubeconfig") }

// LogFile is where a mend in the background writes its log.
func (i Instance) LogFile() string { return i.Path("logs", "mend.log") }

// ControlSocket is where `mend status` and `mend down` reach the running mend.
func (i Instance) ControlSocket() string { return filepath.Join(i.RunDir(), "control.sock") }

// CgroupParent is the cgroup under which every Pod's cgroup lies.
func (i Instance) CgroupParent() string { return "/mend-" + i.ID }

// Name is what the bridge and the nftables table are called.
func (i Instance) Name() string { return "mend-" + i.ID }

// Create opens dir as a data directory, making and stamping it if it is new or
// empty. The stamp is durable before anything else is written there.
func Create(dir string) (Instance, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Instance{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Instance{}, fmt.Errorf("data directory %s cannot be made: %w", dir, plain(err))
	}
	dir = real(dir)
	found, err := Find(dir)
	if !errors.Is(err, ErrNotThere) {
		return found, err
	}
	if err := stamp(dir); err != nil {
		return Instance{}, fmt.Errorf("data directory %s is not writable: %w", dir, plain(err))
	}
	return Find(dir)
}

// real resolves links once, so that a purge, which follows none, and the kernel's
// list of mounts mean the same directory as the person who named it.
func real(dir string) string {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		return resolved
	}
	return dir
}

// stamp writes the id, then the format, each whole or not at all.
func stamp(dir string) error {
	var random [3]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, idFile), []byte(hex.EncodeToString(random[:])+"\n"), 0o600); err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, stampFile), fmt.Appendf(nil, "%s %d\n", stampWord, Format), 0o600)
}

// Find opens an existing data directory without changing anything in it.
func Find(dir string) (Instance, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Instance{}, err
	}
	dir = real(dir)
	text, err := os.ReadFile(filepath.Join(dir, stampFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Instance{}, unstamped(dir)
	case errors.Is(err, fs.ErrPermission):
		return Instance{}, fmt.Errorf("data directory %s is closed to you: run it with sudo, or name another with --data-dir", dir)
	case err != nil:
		return Instance{}, fmt.Errorf("data directory %s cannot be read: %w", dir, plain(err))
	}
	format, err := parseStamp(string(text))
	if err != nil {
		return Instance{}, fmt.Errorf("data directory %s %w: put back its file %q, or name another with --data-dir", dir, err, stampFile)
	}
	if format > Format {
		return Instance{}, fmt.Errorf("data directory %s %w (format %d, this one reads up to %d): use that version, or name another directory with --data-dir; nothing was changed", dir, ErrNewer, format, Format)
	}
	id, err := os.ReadFile(filepath.Join(dir, idFile))
	if err != nil || !validID.MatchString(strings.TrimSpace(string(id))) {
		return Instance{}, fmt.Errorf("data directory %s has lost its instance id: put back its file %q, or name another directory with --data-dir", dir, idFile)
	}
	return Instance{ID: strings.TrimSpace(string(id)), Dir: dir}, nil
}

// unstamped tells an empty or missing directory from somebody else's. A crash
// before the stamp was written, or after it was removed, leaves the id or the
// lock, which is as good as empty.
func unstamped(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data directory %s cannot be read: %w", dir, plain(err))
	}
	for _, entry := range entries {
		switch entry.Name() {
		case idFile, lockFile, "lost+found":
		default:
			return fmt.Errorf("directory %s %w and is not empty: name an empty or a new one with --data-dir", dir, ErrNotOurs)
		}
	}
	return fmt.Errorf("directory %s %w", dir, ErrNotThere)
}

func parseStamp(text string) (int, error) {
	word, number, ok := strings.Cut(strings.TrimSpace(text), " ")
	if !ok || word != stampWord {
		return 0, errBadStamp
	}
	format, err := strconv.Atoi(number)
	if err != nil || format < 1 {
		return 0, errBadStamp
	}
	return format, nil
}

// plain drops the path and call from a PathError: the caller has named the path.
func plain(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// IsStamp says whether an entry of the data directory is one that [Instance.Unstamp]
// takes away.
func IsStamp(name string) bool { return name == stampFile || name == idFile || name == lockFile }

// Unstamp gives the directory up. Everything else must have been removed. A crash
// between two of these leaves a directory that counts as empty.
func (i Instance) Unstamp() error {
	for _, name := range []string{stampFile, idFile, lockFile} {
		if err := os.Remove(i.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

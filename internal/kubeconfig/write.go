package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"mend/internal/instance"
)

// ChildCommand is the hidden subcommand by which mend calls itself with the
// owner's rights; its arguments are an [Action] and the path.
const ChildCommand = "__kubeconfig"

// Action is what the child does with the path.
type Action string

// Write replaces the file, Merge folds standard input into it, Remove deletes it
// if it has the content of standard input's cluster.
const (
	Write  Action = "write"
	Merge  Action = "merge"
	Remove Action = "remove"
)

// As does action on path with owner's rights. config is mend's kubeconfig.
func As(owner Owner, action Action, path string, config []byte) error {
	if owner.UID == os.Geteuid() {
		return Do(action, path, config)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, ChildCommand, string(action), path)
	child.Stdin = bytes.NewReader(config)
	child.Dir = "/"
	child.Env = []string{"HOME=" + owner.Home}
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(owner.UID), Gid: uint32(owner.GID)}}
	if out, err := child.CombinedOutput(); err != nil {
		if text := strings.TrimSpace(string(out)); text != "" {
			return errors.New(text)
		}
		return fmt.Errorf("%s %s with the rights of user %d: %w", action, path, owner.UID, err)
	}
	return nil
}

// Child is the body of [ChildCommand].
func Child(args []string, stdin io.Reader) error {
	if len(args) != 2 {
		return errors.New("want an action and a path")
	}
	config, err := io.ReadAll(io.LimitReader(stdin, 1<<20))
	if err != nil {
		return err
	}
	return Do(Action(args[0]), args[1], config)
}

// Do does action on path with this process's rights.
func Do(action Action, path string, config []byte) error {
	switch action {
	case Write:
		return write(path, config)
	case Merge:
		return merge(path, config)
	case Remove:
		return remove(path, config)
	}
	return fmt.Errorf("unknown action %q", action)
}

// write puts a new file in path's place: a link there is replaced, not followed.
func write(path string, config []byte) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s is not a file", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return instance.WriteFile(path, config, 0o600)
}

// remove deletes path only while it still leads to this instance: another one
// may have been started since.
func remove(path string, config []byte) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	there, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !sameAuthority(there, config) {
		return nil
	}
	return os.Remove(path)
}

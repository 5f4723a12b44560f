package kubeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Owner is the person on whose behalf mend was called.
type Owner struct {
	UID, GID int
	Home     string // empty when there is none
}

// Caller finds the person behind sudo, or the one who runs this process.
func Caller() (Owner, error) {
	owner := Owner{UID: os.Geteuid(), GID: os.Getegid()}
	if owner.UID == 0 && os.Getenv("SUDO_USER") != "" {
		account, err := user.Lookup(os.Getenv("SUDO_USER"))
		if err != nil {
			return Owner{}, fmt.Errorf("SUDO_USER: %w", err)
		}
		return fromAccount(account)
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		owner.Home = home
	}
	return owner, nil
}

func fromAccount(account *user.User) (Owner, error) {
	uid, err := strconv.Atoi(account.Uid)
	if err != nil {
		return Owner{}, fmt.Errorf("user %s: %w", account.Username, err)
	}
	gid, err := strconv.Atoi(account.Gid)
	if err != nil {
		return Owner{}, fmt.Errorf("user %s: %w", account.Username, err)
	}
	return Owner{UID: uid, GID: gid, Home: account.HomeDir}, nil
}

// Default is where the owner's kubeconfig of mend's lies, or "" without a home.
func (o Owner) Default() string {
	if o.Home == "" {
		return ""
	}
	return filepath.Join(o.Home, ".kube", "mend")
}

// UserConfig is the owner's own kubectl configuration.
func (o Owner) UserConfig() string {
	if o.Home == "" {
		return ""
	}
	return filepath.Join(o.Home, ".kube", "config")
}

// OwnerOf is whoever owns the file at path; a link there counts as the file.
func OwnerOf(path string) (Owner, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Owner{UID: os.Geteuid(), GID: os.Getegid()}, nil
	}
	if err != nil {
		return Owner{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Owner{}, fmt.Errorf("%s: its owner is not known", path)
	}
	return Owner{UID: int(stat.Uid), GID: int(stat.Gid)}, nil
}

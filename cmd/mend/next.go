package main

import (
	"path/filepath"

	"mend/internal/instance"
)

// nextCommand is what a person types after `mend up`.
func (u *upOptions) nextCommand(made instance.Instance) string {
	flags := ""
	switch {
	case u.kubeconfig != "":
		flags = " --kubeconfig " + u.kubeconfig
	case made.Dir != defaultDataDir() && made.Dir != ownDataDir():
		flags = " --kubeconfig " + made.Kubeconfig()
	}
	return "mend kubectl" + flags + " get nodes"
}

// absoluteIfFile keeps a relative path meaning the same file in the daemon,
// which runs in /.
func absoluteIfFile(flag, value string) string {
	if flag != "--kubeconfig" {
		return value
	}
	if path, err := filepath.Abs(value); err == nil {
		return path
	}
	return value
}

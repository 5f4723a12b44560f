package main

import "path/filepath"

// nextCommand is what a person types after `mend up`. Without --kubeconfig the
// file is where `mend kubectl` looks for it.
func (u *upOptions) nextCommand() string {
	if u.kubeconfig == "" {
		return "mend kubectl get nodes"
	}
	return "mend kubectl --kubeconfig " + u.kubeconfig + " get nodes"
}

// absoluteIfFile keeps a relative path meaning the same file in the daemon,
// which runs in /.
func absoluteIfFile(flag, value string) string {
	if flag != "--kubeconfig" && flag != "--behaviour" {
		return value
	}
	if path, err := filepath.Abs(value); err == nil {
		return path
	}
	return value
}

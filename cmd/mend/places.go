package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"mend/internal/instance"
	"mend/internal/kubeconfig"
)

const systemDataDir = "/var/lib/mend"

// defaultDataDir is the machine's directory; a person without root who has
// simulated a cluster before gets that one, and where nothing else can be done gets it
// in any case.
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return systemDataDir
	}
	own := ownDataDir()
	if own == "" {
		return systemDataDir
	}
	if _, err := instance.Find(own); err != nil && canRunContainers {
		return systemDataDir
	}
	return own
}

// simulated has a person without root simulate in a directory of their own, unless
// another was named.
func (o *options) simulated(cmd *cobra.Command) {
	if own := ownDataDir(); own != "" && os.Geteuid() != 0 && !cmd.Flags().Changed("data-dir") {
		o.dataDir = own
	}
}

// ownDataDir is where a simulated cluster of a person without root lives.
func ownDataDir() string {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mend")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "share", "mend")
}

// kubeconfigCandidates are the places of mend's kubeconfig, the most wanted
// first: the one in the data directory that was named, else the person's, else
// the machine's.
func kubeconfigCandidates(dataDir string) []string {
	var places []string
	if dataDir != "" && dataDir != defaultDataDir() {
		return []string{filepath.Join(dataDir, "kubeconfig")}
	}
	if owner, err := kubeconfig.Caller(); err == nil && owner.Default() != "" {
		places = append(places, owner.Default())
	}
	return append(places, filepath.Join(defaultDataDir(), "kubeconfig"))
}

// Command mend keeps Kubernetes Deployments healed, from one binary: `mend up`
// runs the API, the loops and the node agent, `mend kubectl` talks to them. A
// link to it named kubectl behaves as kubectl on mend's cluster.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"mend/internal/agent/hostpath"
	"mend/internal/kubeconfig"
	"mend/internal/kubectl"
)

func main() {
	// What mend, containerd and they create together must not depend on the
	// caller's shell.
	syscall.Umask(0o022)
	if name := filepath.Base(os.Args[0]); strings.TrimSuffix(name, ".exe") == "kubectl" {
		os.Exit(kubectl.Run(os.Args[1:], kubeconfigCandidates("")))
	}
	if len(os.Args) > 1 && os.Args[1] == hostpath.ChildCommand {
		os.Exit(hostpath.Child(os.Args[2:], os.Stdout))
	}
	if err := newRoot().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "mend:", err)
		os.Exit(1)
	}
}

// options are the flags that every subcommand shares.
type options struct {
	dataDir string
}

func newRoot() *cobra.Command {
	opts := &options{}
	root := &cobra.Command{
		Use:           "mend",
		Short:         "Kubernetes Deployments that heal themselves, in one binary",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&opts.dataDir, "data-dir", defaultDataDir(),
		"directory that holds the cluster's state")
	root.AddCommand(newUp(opts), newDown(opts), newStatus(opts), newLogs(opts), newDoctor(opts),
		newImage(opts), newSnapshot(opts), newBench(opts), newSimulate(opts), newKubeconfig(opts), newKubectl(opts), newVersion(), newKubeconfigChild())
	return root
}

func newKubectl(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl",
		Short:              "The embedded kubectl, on mend's cluster",
		DisableFlagParsing: true, // every flag is kubectl's own
		RunE: func(_ *cobra.Command, args []string) error {
			os.Exit(kubectl.Run(args, kubeconfigCandidates(opts.dataDir)))
			return nil
		},
	}
}

func newKubeconfigChild() *cobra.Command {
	return &cobra.Command{
		Use:    kubeconfig.ChildCommand,
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return kubeconfig.Child(args, cmd.InOrStdin())
		},
	}
}

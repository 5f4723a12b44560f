package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"mend/internal/instance"
	"mend/internal/kubeconfig"
)

func newKubeconfig(opts *options) *cobra.Command {
	var mergeIt bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the administrator's kubeconfig, or merge it into ~/.kube/config",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := readKubeconfig(opts.dataDir)
			if err != nil {
				return err
			}
			if !mergeIt {
				_, err := cmd.OutOrStdout().Write(config)
				return err
			}
			owner, err := kubeconfig.Caller()
			if err != nil {
				return err
			}
			target := owner.UserConfig()
			if target == "" {
				return errors.New("there is no home directory to merge into")
			}
			if err := kubeconfig.As(owner, kubeconfig.Merge, target, config); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "merged into %s; use it with: kubectl --context mend\n", target)
			return err
		},
	}
	cmd.Flags().BoolVar(&mergeIt, "merge", false, "add mend's context to ~/.kube/config; the current context stays")
	return cmd
}

// readKubeconfig takes the person's own copy where the data directory is closed
// to them.
func readKubeconfig(dataDir string) ([]byte, error) {
	found, err := instance.Find(dataDir)
	if err == nil {
		if config, err := os.ReadFile(found.Kubeconfig()); err == nil {
			return config, nil
		}
	}
	for _, place := range kubeconfigCandidates(dataDir) {
		if config, err := os.ReadFile(place); err == nil {
			return config, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("no kubeconfig of mend's that you may read: has mend run on %s? (%s)", dataDir, startCommand)
}

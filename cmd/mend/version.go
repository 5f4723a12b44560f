package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"mend/internal/version"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print mend's own version and that of the Kubernetes API it serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "mend %s\nKubernetes v%s\n", version.Version, version.Kubernetes)
			return err
		},
	}
}

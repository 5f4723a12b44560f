//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// newImage says why there is none: simulated nodes have every image.
func newImage(*options) *cobra.Command {
	return &cobra.Command{
		Use:                "image",
		Short:              "Images without a registry: on Linux, for real containers",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("images are for real containers, which need Linux; on simulated nodes every image can be pulled")
		},
	}
}

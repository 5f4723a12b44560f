package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"mend/internal/app"
	"mend/internal/instance"
)

func newSnapshot(opts *options) *cobra.Command {
	cmd := &cobra.Command{Use: "snapshot", Short: "Save the state, list what was saved, restore it"}
	cmd.AddCommand(&cobra.Command{
		Use:   "save [FILE]",
		Short: "Save the whole state with its checksum, into the data directory or a new FILE",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := ""
			if len(args) == 1 {
				var err error
				if path, err = filepath.Abs(args[0]); err != nil {
					return err
				}
			}
			return saveSnapshot(cmd, opts, path)
		},
	}, &cobra.Command{
		Use:   "list",
		Short: "List the snapshots in the data directory and check each",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return listSnapshots(cmd, opts) },
	}, &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a snapshot the state; mend must be down. The state of before is kept beside",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := instance.Find(opts.dataDir)
			if err != nil {
				return err
			}
			kept, err := app.RestoreSnapshot(found, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "restored %s\n", args[0])
			if kept != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "the state of before is kept in %s\n", kept)
			}
			return nil
		},
	})
	return cmd
}

func saveSnapshot(cmd *cobra.Command, opts *options, path string) error {
	found, err := instance.Find(opts.dataDir)
	if err != nil {
		return err
	}
	holder, running, err := found.Running()
	if err != nil {
		return err
	}
	if !running {
		path, err := app.SaveStopped(cmd.Context(), found, path)
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), path)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Minute)
	defer cancel()
	query := url.Values{"path": {path}}
	err = order(ctx, cmd.OutOrStdout(), found, holder, "snapshot?"+query.Encode(), nil)
	if errors.Is(err, os.ErrClosed) {
		return errors.New("mend ended while it saved")
	}
	return err
}

func listSnapshots(cmd *cobra.Command, opts *options) error {
	found, err := instance.Find(opts.dataDir)
	if err != nil {
		return err
	}
	list, err := app.Snapshots(found)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "no snapshots yet: mend takes one each hour, one before each upgrade, and by mend snapshot save")
		return nil
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tSIZE\tAGE\tCHECKSUM")
	for _, one := range list {
		checksum := "ok"
		if one.Fault != "" {
			checksum = "DOES NOT FIT"
		}
		fmt.Fprintf(table, "%s\t%d KiB\t%s\t%s\n", filepath.Base(one.Path), one.Bytes>>10, time.Since(one.Written).Round(time.Second), checksum)
	}
	return table.Flush()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"mend/internal/app"
	"mend/internal/instance"
)

// exitLimit bounds the wait for a process that said it was done.
const exitLimit = 30 * time.Second

type downOptions struct {
	*options
	purge, keepPods bool
}

func newDown(opts *options) *cobra.Command {
	down := &downOptions{options: opts}
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the Pods in grace, then mend; the state stays for the next up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if down.purge && down.keepPods {
				return errors.New("--purge and --keep-pods exclude each other")
			}
			return down.run(cmd)
		},
	}
	cmd.Flags().BoolVar(&down.purge, "purge", false, "remove the state too: everything that mend made on this machine")
	cmd.Flags().BoolVar(&down.keepPods, "keep-pods", false, "leave the containers running for the next up")
	return cmd
}

func (d *downOptions) run(cmd *cobra.Command) error {
	found, err := instance.Find(d.dataDir)
	if errors.Is(err, instance.ErrNotThere) {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "nothing to end: %v\n", err)
		return err
	}
	if err != nil {
		return err
	}
	holder, running, err := found.Running()
	if err != nil {
		return err
	}
	if running {
		if err := d.endRunning(cmd, found, holder); err != nil {
			return err
		}
	}
	tell := app.Teller(func(step app.Step) {
		if step.Note != "" {
			fmt.Fprintln(cmd.OutOrStdout(), step.Note)
		}
	})
	if !running && !d.keepPods {
		err := app.EndLeftovers(cmd.Context(), found, tell)
		switch {
		case err != nil && d.purge:
			// Purge ends by force what did not end in grace.
			fmt.Fprintf(cmd.ErrOrStderr(), "what was left did not end in grace: %v\n", err)
		case err != nil:
			return err
		}
	}
	if d.purge {
		if err := app.Purge(cmd.Context(), found, tell); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "mend is down, and %s is gone\n", found.Dir)
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "mend is down; its state stays in %s\n", found.Dir)
	return err
}

// endRunning asks the daemon to end and waits until its process has.
func (d *downOptions) endRunning(cmd *cobra.Command, found instance.Instance, holder instance.Holder) error {
	process, err := watchExit(holder.PID)
	if err != nil {
		return fmt.Errorf("process %d: %w", holder.PID, err)
	}
	defer process.Close()
	query := url.Values{"keepPods": {strconv.FormatBool(d.keepPods)}}
	err = order(cmd.Context(), cmd.OutOrStdout(), found, holder, "down?"+query.Encode(), nil)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return awaitExit(cmd.Context(), process, holder.PID)
}

// awaitExit returns when the process has ended.
func awaitExit(ctx context.Context, process *exitWatch, pid int) error {
	deadline := time.Now().Add(exitLimit)
	for ctx.Err() == nil {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("mend (pid %d) said it was down but has not ended within %s", pid, exitLimit)
		}
		ended, err := process.await(left)
		if ended || err != nil {
			return err
		}
	}
	return ctx.Err()
}

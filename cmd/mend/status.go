package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"mend/internal/app"
	"mend/internal/instance"
	"mend/internal/version"
)

func newStatus(opts *options) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show components, nodes, versions, memory and where things are",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := readStatus(cmd.Context(), opts.dataDir)
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(status)
			} else {
				err = printStatus(cmd.OutOrStdout(), status, time.Now())
			}
			if err == nil && !status.Running {
				return errors.New("mend is not running; start it with: " + startCommand)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "for programs")
	return cmd
}

func readStatus(ctx context.Context, dataDir string) (app.Status, error) {
	found, err := instance.Find(dataDir)
	if err != nil {
		return app.Status{}, err
	}
	holder, running, err := found.Running()
	if err != nil {
		return app.Status{}, err
	}
	if !running {
		return app.Status{Version: version.Version, Kubernetes: version.Kubernetes, Instance: found.ID,
			Paths: map[string]string{"data": found.Dir, "log": found.LogFile()}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://mend/status", nil)
	if err != nil {
		return app.Status{}, err
	}
	response, err := app.ControlClient(found.ControlSocket()).Do(request)
	if err != nil {
		return app.Status{}, unreachable(holder, err)
	}
	defer response.Body.Close()
	var status app.Status
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		return app.Status{}, fmt.Errorf("mend (pid %d) answered something else: %w", holder.PID, err)
	}
	return status, nil
}

func printStatus(out io.Writer, status app.Status, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(table, "mend\t%s (Kubernetes v%s), instance %s\n", status.Version, status.Kubernetes, status.Instance)
	if !status.Running {
		fmt.Fprintf(table, "state\tnot running\n")
	} else {
		fmt.Fprintf(table, "state\trunning for %s, pid %d\n", now.Sub(status.Since).Round(time.Second), status.PID)
		fmt.Fprintf(table, "API\t%s\n", status.Server)
	}
	for _, component := range status.Components {
		fmt.Fprintf(table, "%s\t%s\n", component.Name, healthWord(component.Healthy, component.Message))
	}
	for _, node := range status.Nodes {
		fmt.Fprintf(table, "node %s\t%s, %s, %s, %d pods\n", node.Name,
			healthWord(node.Ready, node.Message), node.Address, node.Kubelet, node.Pods)
	}
	for _, name := range slices.Sorted(maps.Keys(status.Memory)) {
		fmt.Fprintf(table, "memory of %s\t%d MiB\n", name, status.Memory[name]>>20)
	}
	for _, name := range slices.Sorted(maps.Keys(status.Paths)) {
		fmt.Fprintf(table, "%s\t%s\n", name, status.Paths[name])
	}
	return table.Flush()
}

func healthWord(healthy bool, message string) string {
	if healthy {
		return cmp.Or(message, "ok")
	}
	return "NOT OK: " + cmp.Or(message, "no reason given")
}

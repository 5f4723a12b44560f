package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mend/internal/instance"
	"mend/internal/runtime/sim"
)

func newSimulate(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run simulated nodes beside the real ones",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var behaviour string
	nodes := &cobra.Command{
		Use:   "nodes N",
		Short: "Bring the running cluster to N simulated nodes; 0 removes them",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			count, err := strconv.Atoi(args[0])
			if err != nil || count < 0 {
				return fmt.Errorf("%q: want the number of simulated nodes, 0 or more", args[0])
			}
			text, _, err := readBehaviour(behaviour)
			if err != nil {
				return err
			}
			return simulateNodes(cmd, opts, count, text)
		},
	}
	nodes.Flags().StringVar(&behaviour, "behaviour", "", behaviourUsage)
	cmd.AddCommand(nodes)
	return cmd
}

const behaviourUsage = "YAML file that says what simulated containers and nodes do; see examples/behaviour.yaml"

// readBehaviour reads and checks a file, so that what is wrong with it is said
// where it was typed. Without a path both results are empty.
func readBehaviour(path string) (string, *sim.Behaviour, error) {
	if path == "" {
		return "", nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, fmt.Errorf("--behaviour: %w", err)
	}
	behaviour, err := sim.ParseBehaviour(text)
	if err != nil {
		return "", nil, fmt.Errorf("--behaviour %s: %w", path, err)
	}
	return string(text), behaviour, nil
}

func simulateNodes(cmd *cobra.Command, opts *options, count int, behaviour string) error {
	found, err := instance.Find(opts.dataDir)
	if err != nil {
		return err
	}
	holder, running, err := found.Running()
	if err != nil {
		return err
	}
	if !running {
		return errors.New("mend is not running; start it with: " + startCommand)
	}
	path := "simulate?nodes=" + strconv.Itoa(count)
	if err := order(cmd.Context(), cmd.OutOrStdout(), found, holder, path, strings.NewReader(behaviour)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d simulated nodes\n", count)
	return err
}

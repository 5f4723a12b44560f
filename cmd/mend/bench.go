package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"mend/internal/bench"
	"mend/internal/instance"
)

func newBench(opts *options) *cobra.Command {
	var asJSON bool
	var file, context string
	options := bench.Options{StepLimit: 10 * time.Minute}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Time a cluster, mend's or another: scale, heal, roll, requests",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return err
			}
			if file == "" && context == "" {
				if file = firstFile(kubeconfigCandidates(opts.dataDir)); file == "" {
					return errors.New("no kubeconfig of mend's; name one with --kubeconfig")
				}
			}
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = file
			config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
			if err != nil {
				return err
			}
			config.ContentType = "application/vnd.kubernetes.protobuf"
			options.Config, options.Progress = config, cmd.ErrOrStderr()
			if len(options.Processes) == 0 {
				options.Processes = ownProcesses(opts.dataDir)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
			defer stop()
			result, err := bench.Run(ctx, options)
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(result)
			}
			return result.Print(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "kubeconfig", "", "the cluster to time; mend's own by default")
	flags.StringVar(&context, "context", "", "a context of that kubeconfig")
	flags.IntVar(&options.Replicas, "replicas", 10, "Pods in all")
	flags.IntVar(&options.Deployments, "deployments", 1, "Deployments that share them")
	flags.IntVar(&options.Heals, "heals", 20, "Pods to delete one after the other")
	flags.IntVar(&options.Requests, "requests", 0, "requests of each kind to time; 0 leaves them out")
	flags.StringVar(&options.Image, "image", "mend.local/web:1.0", "image of the Pods")
	flags.BoolVar(&options.Probe, "probe", false, "give the Pods a readiness probe (GET /healthz on 8080)")
	flags.IntSliceVar(&options.Processes, "pid", nil, "account memory and CPU of these processes; mend's own by default")
	flags.BoolVar(&asJSON, "json", false, "for programs")
	return cmd
}

func firstFile(paths []string) string {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// ownProcesses is the mend that runs on this data directory.
func ownProcesses(dataDir string) []int {
	found, err := instance.Find(dataDir)
	if err != nil {
		return nil
	}
	holder, running, err := found.Running()
	if err != nil || !running {
		return nil
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", holder.PID)); err != nil {
		return nil
	}
	return []int{holder.PID}
}
